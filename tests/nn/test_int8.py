"""Keys and values in bytes: how near they are, how few they are, and that every cache can hold them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from regard.cost import cache_bytes
from regard.decode import Rules, generate
from regard.errors import UsageError
from regard.laws import lively
from regard.laws.asking import begin, tokens
from regard.model import Decoder, EncoderDecoder, Model
from regard.nn import cache as caches
from regard.nn.cache import Cache
from regard.nn.pattern import Causal, Window
from regard.nn.position import Alibi, Rotary
from regard.spec import of

BOOK = Path(__file__).parents[2].parent / "shared" / "data" / "tinyshakespeare"


def test_a_vector_is_kept_to_half_a_step() -> None:
    cache = Cache(2, precision="int8")
    t = torch.randn(2, 3, 50, 16) * torch.logspace(-30, 30, 50)[:, None]
    t[0, 0, 0] = 0.0
    (again,) = cache.unpack(cache.pack((t,)), t.dtype)
    step = t.abs().amax(-1, keepdim=True) / 127
    assert bool(((again - t).abs() <= 0.51 * step).all())
    assert not bool(again[0, 0, 0].any())
    assert again.dtype == t.dtype and bool(again.isfinite().all())


def model(name: str = "gpt", **options: Any) -> Any:
    given: dict[str, Any] = {"vocab": 13, "width": 16, "heads": 4, "layers": 2, "length": 48}
    return lively(regard.system(name, **given, **options))


def fed(model: Model, ids: Tensor, cache: Cache, cuts: list[int]) -> Tensor:
    with torch.no_grad():
        return torch.cat([_ask(model, ids[:, a:b], cache) for a, b in pairwise([0, *cuts, ids.shape[1]])], 1)


def _ask(model: Model, ids: Tensor, cache: Cache) -> Tensor:
    said: Tensor = (
        model(None, ids, cache=cache) if isinstance(model, EncoderDecoder) else model(ids, cache=cache)
    )
    return said


KINDS = {
    "every": {"pattern": of(Causal)},
    "ring": {"pattern": of(Window, width=5)},
    "groups": {"pattern": of(Window, width=7), "groups": 2, "position": of(Alibi)},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pads", ["left", "plain"])
def test_bytes_do_not_depend_on_how_they_are_held(kind: str, pads: str) -> None:
    """Growing or static, rows moved and moved back, tokens fed and taken back: the same answers."""
    built, ids, guess = model(**KINDS[kind]), tokens(3, pads=pads), tokens(3, 2, "plain", seed=2)
    cuts = list(range(1, 18))
    wanted = fed(built, ids, built.cache(3, precision="int8"), cuts)
    for length in (None, 22):
        cache = built.cache(3, length, spare=2, precision="int8")
        got = []
        with torch.no_grad():
            for a, b in pairwise([0, *cuts, 18]):
                got.append(built(ids[:, a:b], cache=cache))
                built(guess, cache=cache)
                cache.rollback(2)
                cache.reorder(torch.tensor([2, 0, 1]))
                cache.reorder(torch.tensor([1, 2, 0]))
        assert (torch.cat(got, 1) - wanted)[ids >= 0].abs().max() < 1e-5


@pytest.mark.parametrize("kind", [*KINDS, "vanilla"])
@pytest.mark.parametrize("pads", ["left", "plain"])
def test_bytes_do_not_depend_on_how_tokens_are_cut(kind: str, pads: str) -> None:
    """What is new is read as it will be read later; else a longer batch-mate, whose prompt is cut elsewhere,
    would change an answer by what rounding to bytes changes.
    """
    built = (model("vanilla") if kind == "vanilla" else model(**KINDS[kind])).double()
    ids, said = tokens(3, pads=pads), []
    for cuts in (list(range(1, 18)), [7], [3, 4, 11], []):
        cache = built.cache(3, precision="int8")
        if isinstance(built, EncoderDecoder):
            cache.memory = begin(built, ids).memory
        said.append(fed(built, ids, cache, cuts))
    for other in said[1:]:
        assert (other - said[0])[ids >= 0].abs().max() < 1e-9


@pytest.mark.parametrize("name", ["gpt", "memory_compressed", "vanilla"])
def test_bytes_are_near_the_whole(name: str) -> None:
    """Large random weights: what rounding changes is small against what the model says."""
    built, ids = model(name), tokens(3)
    whole = fed(built, ids, begin(built, ids), [6, 7, 12])
    cache = built.cache(3, precision="int8")
    if isinstance(built, EncoderDecoder):
        cache.memory = begin(built, ids).memory
    difference = (fed(built, ids, cache, [6, 7, 12]) - whole)[ids >= 0]
    assert 0 < difference.std() < 0.03 * whole[ids >= 0].std()


@pytest.mark.parametrize("name", ["gpt", "llama", "memory_compressed", "vanilla"])
@pytest.mark.parametrize("static", [False, True])
def test_about_a_quarter_of_the_bytes(name: str, static: bool) -> None:
    built = regard.build(regard.system(name, vocab=13, width=128, heads=2, layers=2, length=48))
    assert isinstance(built, Decoder | EncoderDecoder)
    ids, found = tokens(2, 18, "plain"), {}
    for precision in ("full", "int8"):
        cache = built.cache(2, 18 if static else None, precision=precision)  # type: ignore[arg-type]
        if isinstance(built, EncoderDecoder):
            with torch.no_grad():
                cache.memory = built.encode(ids)
        fed(built, ids, cache, [9])
        found[precision] = cache.nbytes
        assert cache.nbytes == sum(b for _, b in cache_bytes(built, 2, 18, "fp32", precision))  # type: ignore[arg-type]
    assert found["int8"] / found["full"] == (64 + 2) / (64 * 4) <= 0.27


def test_answers_are_written_from_bytes() -> None:
    built = model()
    prompts = [[1, 2, 3], [4, 5]]
    for method in ("greedy", "beam", "sample"):
        one, other = (
            generate(built, prompts, None, Rules(length=8, method=method, cache=kept))  # type: ignore[arg-type]
            for kept in ("full", "int8")
        )
        assert all(len(h[0].ids) == 8 for h in other)
        assert one[0][0].logp != other[0][0].logp
    with pytest.raises(UsageError, match="cache must be full or int8, but is 'int4'"):
        Rules(cache="int4")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="must be full or int8"):
        built.cache(1, precision="half")


# ---- what it costs in nats


def learn(ids_T: Tensor, steps: int, length: int, **options: Any) -> Decoder:
    built = regard.build(regard.system("gpt", length=length, **options))
    assert isinstance(built, Decoder)
    random = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(built.parameters(), lr=3e-3, weight_decay=0.0)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1.0, (step + 1) / 20) * (1 - step / steps)
        at = torch.randint(len(ids_T) - length - 1, (16, 1), generator=random) + torch.arange(length + 1)
        logits = built(ids_T[at][:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids_T[at][:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return built.eval()


def nats(built: Decoder, ids_BL: Tensor, precision: Any) -> float:
    cache = built.cache(len(ids_BL), precision=precision)
    logits = fed(built, ids_BL[:, :-1], cache, list(range(1, ids_BL.shape[1] - 1, 4)))
    return float(F.cross_entropy(logits.flatten(0, 1), ids_BL[:, 1:].flatten()))


def coarser(t: Tensor) -> tuple[Tensor, Tensor]:
    """The same with three numbers only: -1, 0, 1."""
    scale = t.abs().amax(-1, keepdim=True).to(torch.bfloat16)
    return (t / scale.to(t.dtype).clamp(min=1e-30)).round().clamp(-1, 1).to(torch.int8), scale


def test_a_trained_model_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A toy language that must be looked up: each second letter repeats the one three before it."""
    noise = torch.randint(8, (6000,), generator=torch.Generator().manual_seed(3))
    ids = torch.stack([noise, noise.roll(1) + 8], 1).flatten()
    built = learn(ids[:10_000], 150, 31, vocab=16, width=32, heads=2, layers=2, position=of(Rotary))
    held = ids[10_000:][: 60 * 32].view(-1, 32)
    full = nats(built, held, "full")
    assert full < 1.4, "at best 1.04, half of log 8; without looking 2.08"
    assert abs(nats(built, held, "int8") - full) <= 0.01
    monkeypatch.setattr(caches, "in_bytes", coarser)
    assert nats(built, held, "int8") - full > 0.01


@pytest.mark.prove
def test_shakespeare_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 0.01 nats; the twin keeps -1, 0 and 1 only, and fails."""
    files = sorted(BOOK.glob("*.txt")) if BOOK.is_dir() else []
    if not files:
        pytest.skip(f"{BOOK.name} is not there")
    text = files[0].read_text(encoding="utf-8")
    letters = {c: n for n, c in enumerate(sorted(set(text)))}
    ids = torch.tensor([letters[c] for c in text])
    built = learn(ids[:-60_000], 400, 128, vocab=len(letters), width=128, heads=2, layers=2)
    held = ids[-60_000:][: 129 * 48].view(-1, 129)
    full, kept = nats(built, held, "full"), nats(built, held, "int8")
    print(f"nats a letter: full {full:.4f}, int8 {kept:.4f}")
    assert full < 2.4 and abs(kept - full) <= 0.01
    monkeypatch.setattr(caches, "in_bytes", coarser)
    assert nats(built, held, "int8") - full > 0.01
