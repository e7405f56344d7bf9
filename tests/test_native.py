"""Kernels in C against their slow twins: of every kind that was compiled and that this processor can run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import regard
import regard.nn.norm
import regard.nn.product
import regard.packed
from regard import native
from regard.decode import Rules, generate
from regard.decode.beam import candidates
from regard.dims import Dims
from regard.packed import Packed, Whole, sums_bytes

CAN = {"AVX512": ["v4", "v3"], "AVX2": ["v3"]}.get(torch.backends.cpu.get_cpu_capability(), [])


@pytest.fixture(params=["v4", "v3"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """One kind of kernels, in place of the best."""
    if request.param not in CAN:
        pytest.skip(f"this processor cannot run kernels of kind {request.param}")
    if (found := native.load(request.param)) is None:
        pytest.skip(f"kernels of kind {request.param} were not compiled")
    monkeypatch.setattr(native, "library", lambda: found)
    yield request.param


def formula(q: Tensor, k: Tensor, v: Tensor, scale: float, allow: Tensor | None) -> Tensor:
    """In float64, head by head: softmax over what is seen; who sees nothing reads nothing."""
    heads, groups = q.shape[1], k.shape[1]
    of = torch.arange(heads) * groups // heads
    s = scale * q.double() @ k.double()[:, of].mT
    if allow is not None:
        s = s.masked_fill(~allow, -torch.inf)
    return torch.softmax(s, -1).nan_to_num(0.0) @ v.double()[:, of]


def test_kernels_are_compiled_where_the_suite_runs() -> None:
    """A build that silently failed would leave everything below skipped."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc to compile them with")
    assert not CAN or native.library() is not None, "install regard again: its kernels were not compiled"


@pytest.mark.parametrize("heads, groups", [(4, 4), (8, 2), (3, 3), (6, 1)])
@pytest.mark.parametrize("size, wide", [(32, 32), (64, 64), (16, 48), (5, 7)])
@pytest.mark.parametrize("keys", [1, 4, 17, 512])
@pytest.mark.parametrize("seen", ["all", "some", "by head"])
def test_attention(kind: str, heads: int, groups: int, size: int, wide: int, keys: int, seen: str) -> None:
    """As the formula says, from views of larger buffers; what is not seen is not even read."""
    q = torch.randn(3, 5, heads, 2 * size)[..., :size].transpose(1, 2)
    k, v = torch.randn(3, groups, keys + 3, size)[:, :, :keys], torch.randn(3, groups, keys, wide)
    allow = None
    if seen != "all":
        allow = torch.rand(3, heads if seen == "by head" else 1, 5, keys) < 0.4
        allow[1, :, 2] = False
        if heads == groups and seen == "some":
            gone = ~allow.any(2)[:, 0]  # keys that nobody sees
            k, v = (t.masked_fill(gone[:, None, :, None], torch.nan) for t in (k, v))
    assert native.can_attend(q, k, v)
    found = native.attend_few(q, k, v, 0.3, allow)
    wanted = formula(q, k.nan_to_num(0.0), v.nan_to_num(0.0), 0.3, allow)
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= 5e-6
    assert allow is None or not found[1, :, 2].any()


@pytest.mark.parametrize("heads", [1, 4])
def test_scores_far_apart(kind: str, heads: int) -> None:
    """Weights below what a float holds are nothing; large scores do not overflow."""
    q, k, v = torch.full((1, heads, 1, 16), 10.0), torch.zeros(1, heads, 9, 16), torch.randn(1, heads, 9, 16)
    k[0, :, 3], k[0, :, 5], k[0, :, 7] = 10.0, 10.0, -10.0
    found = native.attend_few(q, k, v, 1.0, None)
    assert (found[0, :, 0] - (v[0, :, 3] + v[0, :, 5]) / 2).abs().max() <= 1e-6


@pytest.mark.parametrize("heads", [1, 4])
def test_what_is_no_number_shows(kind: str, heads: int) -> None:
    """A key that is seen and is no number must not become one."""
    q, k, v = (torch.randn(2, heads, 3, 32) for _ in range(3))
    k[0, :, 1, 4] = torch.nan
    found = native.attend_few(q, k, v, 1.0, None)
    assert found[0].isnan().all() and not found[1].isnan().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8])
def test_rows_are_placed_and_moved(kind: str, dtype: torch.dtype) -> None:
    """As indices do, for numbers of any size."""
    room, new = torch.randn(4, 3, 9, 5).mul(50).to(dtype), torch.randn(4, 6, 3, 5).mul(50).to(dtype)
    place = torch.stack([torch.randperm(9)[:6] for _ in range(4)])
    wanted = room.clone()
    wanted[torch.arange(4)[:, None], :, place] = new
    assert native.can_place(room, new) and native.can_move(room)
    native.place_rows(room, new, place)
    assert torch.equal(room, wanted)
    wanted[:2, :, :7] = wanted[[3, 2], :, :7]
    native.move_rows(room, torch.tensor([0, 1]), torch.tensor([3, 2]), 7)
    assert torch.equal(room, wanted)


@pytest.mark.parametrize("vocab", [3, 64, 100, 1000])
@pytest.mark.parametrize("alive", [1, 5])
@pytest.mark.parametrize("barred", [False, True])
def test_the_best_words(
    kind: str, vocab: int, alive: int, barred: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What PyTorch's log softmax and topk find, also where words are excluded and sentences may not end."""
    logits, logp = torch.randn(7 * alive, vocab) * 4, -torch.rand(7, alive).double() * 9
    logits[2, 1] = -torch.inf
    logits[:, 2] += 6  # an end that would often be taken
    barred_B = torch.arange(7) % 2 == 0 if barred else None
    found = candidates(logits.clone(), logp, 5, 2, barred_B)
    monkeypatch.setattr(native, "library", lambda: None)
    wanted = candidates(logits.clone(), logp, 5, 2, barred_B)
    real = wanted[0] > -torch.inf  # where there are too few, nobody asks which they are
    assert torch.equal(real, found[0] > -torch.inf)
    assert (found[0] - wanted[0])[real].abs().max() <= 2e-6
    assert all(
        torch.equal(ours[real], theirs[real]) for ours, theirs in zip(found[1:], wanted[1:], strict=True)
    )


def test_words_that_are_alike_come_in_order(kind: str) -> None:
    """The first of them first, whatever stands between."""
    logits = torch.zeros(2, 200)
    _, parent, word = candidates(logits, torch.zeros(1, 2, dtype=torch.float64), 3)
    assert parent.tolist() == [[0] * 6] and word.tolist() == [[0, 1, 2, 3, 4, 5]]


def test_logits_far_apart(kind: str) -> None:
    """log p of words that a float's e^x cannot hold is still right."""
    logits = torch.tensor([[0.0, -200.0, 50.0, 49.0]])
    logp, _, word = candidates(logits.clone(), torch.zeros(1, 1, dtype=torch.float64), 2)
    assert word.tolist() == [[2, 3, 0, 1]]
    assert (logp - torch.log_softmax(logits.double(), -1)[:, [2, 3, 0, 1]]).abs().max() <= 2e-5


@pytest.mark.parametrize("cache", ["full", "int8"])
@pytest.mark.parametrize("system", ["vanilla", "gpt", "llama"])
def test_beams_are_the_same_with_and_without(
    kind: str, system: str, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole searches with sentences that leave and join: the same answers, and every kernel was asked."""
    monkeypatch.setattr(regard.nn.sums, "ROWS", 1)
    recipe = regard.system(system, vocab=60, width=64, heads=4, layers=2, length=64)
    model = regard.build(recipe, seed=1).eval()
    sizes = [3 + n % 9 for n in range(40)]
    prompts = [torch.randint(4, 60, (1 if system == "vanilla" else size,)).tolist() for size in sizes]
    sources = [torch.randint(4, 60, (size,)).tolist() for size in sizes] if system == "vanilla" else None
    rules = Rules(method="beam", beam=4, length=12, nbest=2, cache=cache)
    asked: set[str] = set()
    way = native._kernel
    monkeypatch.setattr(native, "_kernel", lambda name: asked.add(name) or way(name))  # type: ignore[func-returns-value]
    found = generate(model, prompts, sources, rules, eos=2, budget=1200)
    assert asked == set(native.GIVEN) - {"row_times", "row_of_bytes", "rows_times"}
    monkeypatch.setattr(native, "library", lambda: None)
    wanted = generate(model, prompts, sources, rules, eos=2, budget=1200)
    for ours, theirs in zip(found, wanted, strict=True):
        assert [h.ids for h in ours] == [h.ids for h in theirs]
        most = 1e-4 if cache == "full" else 1e-2  # a byte of a key may fall to the other side
        assert max(abs(a.logp - b.logp) for a, b in zip(ours, theirs, strict=True)) <= most


def test_what_is_learned_from_goes_another_way(kind: str) -> None:
    """A kernel has no gradient."""
    q, k, v = (torch.randn(2, 4, 3, 32, requires_grad=True) for _ in range(3))
    assert not native.can_attend(q, k, v) and not native.can_move(k) and not native.can_place(k, k)
    assert not native.can_attend(*(t.detach().double() for t in (q, k, v)))


def test_a_file_that_is_missing_or_broken_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither may cost an answer."""
    monkeypatch.setattr(native, "__file__", str(tmp_path / "__init__.py"))
    assert native.load("v3") is None and native.load(None) is None
    suffix = native.sysconfig.get_config_var("EXT_SUFFIX")
    (tmp_path / f"kernels_v3{suffix}").write_bytes(b"\x7fELF no library")
    assert native.load("v3") is None


@pytest.mark.parametrize("rows, size", [(1, 1), (3, 64), (5, 130), (257, 192)])
@pytest.mark.parametrize("biased", [True, False])
def test_one_row_times_a_matrix(kind: str, rows: int, size: int, biased: bool) -> None:
    """Also where its numbers are no multiple of what is multiplied at once."""
    x, weight, bias = torch.randn(1, size), torch.randn(rows, size), torch.randn(rows) if biased else None
    wanted = torch.nn.functional.linear(*(None if t is None else t.double() for t in (x, weight, bias)))
    assert (native.row_times(x, weight, bias) - wanted[0]).abs().max() <= 2e-5


@pytest.mark.parametrize("rows, size", [(1, 1), (3, 128), (5, 130), (257, 768)])
@pytest.mark.parametrize("biased", [True, False])
def test_one_row_times_a_matrix_of_bytes(kind: str, rows: int, size: int, biased: bool) -> None:
    """The twin of `Whole` for several rows; nothing of the sums is cut off, no number of x too large."""
    if kind == "v4" and not sums_bytes():
        pytest.skip("this processor does not multiply bytes")
    weight, bias = torch.randn(rows, size), torch.randn(rows) if biased else None
    for x in (
        torch.randn(size),
        torch.ones(size),
        -torch.ones(size),
        torch.zeros(size),
        1e6 * torch.randn(size),
    ):
        twin = Whole(weight, bias)
        whole = (weight / twin.scale[:, None]).round().to(torch.int8)
        found = native.row_of_bytes(x, whole, twin.scale, whole.sum(1, dtype=torch.int64), bias)
        wanted = twin(torch.stack([x, x]))[0]
        assert (found - wanted).abs().max() <= 1e-5 * (1 + wanted.abs().max())


def test_what_is_no_number_is_not_hidden(kind: str) -> None:
    """One NaN in x, and no number of the answer is any."""
    if kind == "v4" and not sums_bytes():
        pytest.skip("this processor does not multiply bytes")
    x, whole = torch.randn(24), torch.randint(-127, 128, (5, 24), dtype=torch.int8)
    x[7] = torch.nan
    found = native.row_of_bytes(x, whole, torch.ones(5), whole.sum(1))
    assert found.isnan().all()
    assert native.row_times(x, torch.randn(5, 24), None).isnan().all()
    assert native.norm_rows(x[None], torch.ones(24), None, 1e-5).isnan().all()
    rows = native.rows_times(torch.stack([x, torch.ones(24)]), native.panels(torch.randn(5, 24)), None, 5)
    assert rows[0].isnan().all() and not rows[1].isnan().any()


def test_whole_numbers_of_one_row_are_those_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernel and by oneDNN: who answers alone gets what he would get among others."""
    layer, x = Whole(torch.randn(300, 200), torch.randn(300)), torch.randn(4, 200)
    if layer.whole is None:
        pytest.skip("no kernel was compiled for this processor")
    called: list[int] = []
    kernel = regard.packed.row_of_bytes
    monkeypatch.setattr(regard.packed, "row_of_bytes", lambda *given: called.append(1) or kernel(*given))  # type: ignore[func-returns-value]
    alone = torch.cat([layer(row[None]) for row in x])
    assert len(called) == 4
    assert (alone - layer(x)).abs().max() <= 1e-5 * layer(x).abs().max()
    assert len(called) == 4
    torch.library.opcheck(
        torch.ops.regard.row_of_bytes.default,
        (x[0], layer.whole, layer.scale, layer.total, layer.bias),
        test_utils=["test_schema", "test_faketensor"],
    )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [1, 3, 4, 11, 12, 25, 200])
@pytest.mark.parametrize("count, size", [(1, 1), (16, 5), (31, 64), (33, 128), (144, 100)])
@pytest.mark.parametrize("biased", [True, False])
def test_some_rows_times_a_matrix(
    kind: str, threads: int, rows: int, count: int, size: int, biased: bool
) -> None:
    """Also where neither rows nor columns are multiples of what is multiplied at once."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    x = torch.randn(rows, 2, size)[:, 0] / size**0.5
    weight, bias = torch.randn(count, size), torch.randn(count)
    found = native.rows_times(x, native.panels(weight), bias if biased else None, count)
    wanted = torch.nn.functional.linear(x.double(), weight.double(), bias.double() if biased else None)
    torch.set_num_threads(before)
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= 1e-5


def test_small_matrices_are_multiplied_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of packed models in fp32; large ones, and other numbers, are oneDNN's."""
    if not native.multiplies():
        pytest.skip("no kernel was compiled for this processor")
    x, weight, bias = torch.randn(3, 4, 64) / 8, torch.randn(40, 64), torch.randn(40)
    asked: list[str] = []
    way = native._kernel
    monkeypatch.setattr(native, "_kernel", lambda name: asked.append(name) or way(name))  # type: ignore[func-returns-value]
    near = Packed(weight, bias)
    monkeypatch.setattr(regard.packed, "SMALL", 40 * 64 - 1)
    far = Packed(weight, bias)
    assert (near(x) - far(x)).abs().max() <= 1e-5 and near(x).shape == (3, 4, 40)
    assert near(x[:0]).shape == (0, 4, 40)
    assert asked == ["rows_times"] * 3 and near.small and not far.small
    torch.library.opcheck(
        torch.ops.regard.rows.default, (x, near.laid, bias, 40), test_utils=["test_schema", "test_faketensor"]
    )


@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (2, 3, 64), (300, 128)])
@pytest.mark.parametrize("biased", [True, False])
def test_norms(kind: str, shape: tuple[int, ...], biased: bool) -> None:
    """By the formula, where mean and variance differ from row to row, and where a row is constant."""
    x, weight, bias = torch.randn(shape), torch.randn(shape[-1]), torch.randn(shape[-1])
    x = x * 10 ** torch.randn(*shape[:-1], 1) + torch.randn(*shape[:-1], 1)
    x[0] = 3.0
    found = native.norm_rows(x, weight, bias if biased else None, 1e-5)
    apart = x.double() - x.double().mean(-1, keepdim=True)
    wanted = apart / (apart.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + (bias if biased else 0)
    twin = torch.nn.functional.layer_norm(x, shape[-1:], weight, bias if biased else None, 1e-5)
    assert (found - wanted).abs().max() <= max(1e-5, 2 * float((twin - wanted).abs().max()))
    root = native.norm_rows(x, weight, None, 1e-6, centred=False)
    wanted = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    assert (root - wanted).abs().max() <= 1e-5


@pytest.mark.parametrize("norm", [regard.nn.norm.Layer, regard.nn.norm.Rms])
def test_norms_that_learn_are_torchs(norm: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel has no gradient, so it is asked only where none is wanted."""
    asked: list[str] = []
    way = native._kernel
    monkeypatch.setattr(native, "_kernel", lambda name: asked.append(name) or way(name))  # type: ignore[func-returns-value]
    layer, x = norm(Dims(width=16, heads=2, layers=1, length=8)), torch.randn(3, 16, requires_grad=True)
    layer(x).square().sum().backward()
    assert x.grad is not None and layer.weight.grad is not None and not asked
    with torch.no_grad():
        layer(torch.randn(16, 3).T)  # whose rows do not stand one after the other
        assert not asked
        layer(x)
    assert bool(asked) == (native.library() is not None)


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_of_another_width_are_refused(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel would read beyond their end."""
    monkeypatch.setattr(regard.nn.product, "LEAST", 1)
    monkeypatch.setattr(regard.nn.product, "_threads", lambda: 2)
    sizes = Dims(width=24, heads=2, layers=1, length=8)
    layers = [regard.nn.norm.Layer(sizes), regard.nn.norm.Rms(sizes), Packed(torch.randn(7, 24), None)]
    layers += [Whole(torch.randn(7, 24), None), regard.nn.product.Linear(24, 7)]
    for layer in layers:
        for width in (12, 48):
            with torch.no_grad(), pytest.raises(RuntimeError):
                layer(torch.randn(rows, width))
