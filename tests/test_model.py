"""Models as they are called: what is found by itself, what is refused, what is the same everywhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.errors import UsageError
from regard.laws import lively, padding_is_blind
from regard.laws.asking import ask, begin, source, tokens
from regard.laws.subjects import systems
from regard.model import Decoder, Encoder, EncoderDecoder, Model, build
from regard.nn.context import Memory, places
from regard.nn.pattern import Window
from regard.nn.position import Rotary
from regard.spec import SpecError, of
from regard.systems import SYSTEMS, find, options_of

NAMES = sorted(SYSTEMS)


def model_of(name: str, **options: Any) -> Model:
    numbers: dict[str, Any] = {"width": 16, "heads": 4, "layers": 2, "length": 48, "vocab": 13}
    return lively(regard.system(name, **{**numbers, **options}))


# ---- the Python API


def test_the_front_door() -> None:
    """As the issue writes it."""
    assert regard.systems() == NAMES == sorted(NAMES)
    assert {"bert", "gpt", "llama", "t5", "vanilla"} <= set(NAMES)
    recipe = regard.system("gpt", vocab=65, width=128, heads=4, layers=4, length=64)
    model = regard.build(recipe, seed=0)
    ids = torch.randint(0, 65, (2, 10))
    assert model(ids).shape == (2, 10, 65)
    cache = model.cache(2, 16)
    assert model(ids, cache=cache).shape == (2, 10, 65)
    assert model.recipe == recipe and model.dims.layers == 4
    assert regard.read(regard.Model, regard.write(recipe)) == recipe
    with pytest.raises(AttributeError, match="regard has no 'sytem'"):
        regard.sytem  # noqa: B018


def test_names_that_are_also_files_stay_functions(tmp_path: Path) -> None:
    """`regard.save` and `regard.systems` are files too: importing them must not hide the functions."""
    import regard.save
    import regard.systems

    model = model_of("gpt")
    for number in range(2):
        assert regard.save(model, tmp_path / str(number)) == tmp_path / str(number)
        assert regard.systems() == NAMES
    code = "import regard; print(*[(regard.systems(), callable(regard.save)) for _ in range(2)])"
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert told.strip() == f"({NAMES}, True) ({NAMES}, True)"


def test_import_does_not_wait_for_torch() -> None:
    code = (
        "import sys, regard; assert 'torch' not in sys.modules; regard.build; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", NAMES)
def test_every_system_tells_its_paper(name: str) -> None:
    system = find(name)
    assert system.about and re.search(r"\b20[12]\d\b", system.paper)
    assert system.file == f"regard/systems/{name}.py"
    assert "vocab" in options_of(name) and "dims" not in options_of(name)


def test_systems_refuse_what_they_do_not_know() -> None:
    with pytest.raises(
        UsageError, match=r"No system is called 'gtp'\. Did you mean 'gpt'\? Known: adaptive_span, "
    ):
        regard.system("gtp")
    with pytest.raises(SpecError, match=r"model\.size: gpt has no size 'huge'\. It has: small, "):
        regard.system("gpt", size="huge")
    with pytest.raises(SpecError) as caught:
        regard.system("gpt", hiden=3, order="before", heads=0)
    assert [path for path, _ in caught.value.problems] == [
        "model.dims.width",
        "model.hiden",
        "model.order",
        "model.vocab",
    ]
    with pytest.raises(SpecError, match=r"model\.dims: dims\.heads must divide dims\.width, but 5 heads"):
        regard.system("gpt", vocab=5, width=16, heads=5)
    with pytest.raises(UsageError, match="must be given `classes`"):
        regard.system("bert", vocab=5, width=16, head="pooled")


@pytest.mark.parametrize("name", NAMES)
def test_named_sizes_build(name: str) -> None:
    """Each preset is complete, and an option given beside it wins."""
    for size in find(name).sizes:
        recipe = regard.system(name, size=size, layers=1)
        with torch.device("meta"):
            model = recipe.build()
        assert model.dims.layers == 1
        assert model.dims.width == find(name).sizes[size]["width"]


# ---- shapes, paddings, tapes


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pads", ["plain", "left", "right", "middle"])
def test_forward_finds_padding_that_states_are_told(name: str, pads: str) -> None:
    model, ids = model_of(name), tokens(3, pads=pads)
    pos = None if pads == "plain" else places(ids)
    with torch.no_grad():
        if isinstance(model, EncoderDecoder):
            read = source(ids)
            told = model.states(ids, pos, model.encode(read, places(read)))
        else:
            assert isinstance(model, Decoder | Encoder)
            told = model.states(ids, pos)
        assert torch.equal(model.head(told), ask(model, ids))


@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_model_finds_padding_too(name: str) -> None:
    """A graph cannot look whether there is padding, so it must allow for it."""
    model, ids = model_of(name), tokens(3)
    compiled: Any = torch.compile(model, backend="eager")
    with torch.no_grad():
        args = (source(ids), ids) if isinstance(model, EncoderDecoder) else (ids,)
        got, wanted = compiled(*args), model(*args)
    assert (got - wanted)[ids >= 0].abs().max() < 1e-5


def test_places_count_real_tokens() -> None:
    ids = torch.tensor([[5, -1, 0, -7, 3], [-1, -1, -1, -1, -1], [1, 2, 3, 4, 5]])
    assert places(ids).tolist() == [[0, -1, 1, -1, 2], [-1] * 5, [0, 1, 2, 3, 4]]
    start = torch.tensor([10, 3, 0])
    assert places(ids, start).tolist() == [[10, -1, 11, -1, 12], [-1] * 5, [0, 1, 2, 3, 4]]


def test_any_negative_id_is_padding_and_zero_is_not() -> None:
    model = model_of("gpt")
    a, b = torch.tensor([[-1, 0, 3, 0]]), torch.tensor([[-100, 0, 3, 0]])
    assert torch.equal(model(a), model(b))
    assert (model(a)[:, 1:] - model(torch.tensor([[0, 3, 0]]))).abs().max() < 1e-5
    assert (model(a)[:, 1:] - model(torch.tensor([[0, 0, 3, 0]]))[:, 1:]).abs().max() > 1e-2


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_nothing_but_padding(name: str) -> None:
    """No NaN in answers or gradients, whatever is asked of it."""
    model = model_of(name)
    ids = torch.full((2, 5), -1)
    y = ask(model, ids, ids)
    assert bool(y.isfinite().all())
    found = torch.autograd.grad(y.sum(), list(model.parameters()), allow_unused=True)
    assert all(g is None or bool(g.isfinite().all()) for g in found)


def test_long_windows_are_blind_to_padding_at_the_real_size_of_a_block() -> None:
    """Past two blocks of 128 a window goes blockwise; ragged rows, alone and together, token by token too."""
    model = model_of("gpt", length=400, pattern=of(Window, width=40), position=of(Rotary), groups=2, layers=1)
    ids = tokens(3, 300)
    ids[1, :137] = -2
    ids[2, 50:180] = -1
    with torch.no_grad():
        together = model(ids)
        for row in range(3):
            real = ids[row] >= 0
            assert (together[row, real] - model(ids[row, real][None])[0]).abs().max() < 1e-4
        cache = model.cache(3)
        pieces = [model(ids[:, a:b], cache=cache) for a, b in ((0, 290), (290, 291), (291, 300))]
    assert (torch.cat(pieces, 1) - together)[ids >= 0].abs().max() < 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_a_tape_changes_no_answer(name: str) -> None:
    model, ids = model_of(name), tokens(3)
    tape: dict[str, Tensor] = {}
    args = (source(ids), ids) if isinstance(model, EncoderDecoder) else (ids,)
    with torch.no_grad():
        assert (model(*args, tape=tape) - model(*args))[ids >= 0].abs().max() < 1e-4
    stacks = (
        ("encoder", "decoder") if isinstance(model, EncoderDecoder) else (next(iter(tape)).split("/")[0],)
    )
    assert len(tape) == 2 * (3 if len(stacks) == 2 else 1)
    for path, w_BHLM in tape.items():
        assert w_BHLM.shape[1] == 4 and not w_BHLM.requires_grad
        if w_BHLM.shape[3] != w_BHLM.shape[2] and not path.endswith("cross"):
            continue  # compressed keys are not tokens
        keys = (
            source(ids)
            if path.endswith("cross") or (path.startswith("encoder/") and len(stacks) == 2)
            else ids
        )
        assert not w_BHLM.masked_select((keys < 0)[:, None, None, :]).any(), "padding gets no weight"


def test_a_tape_with_a_cache_sees_all_keys() -> None:
    model, ids = model_of("gpt"), tokens(3, 10, "plain")
    cache, tape = model.cache(3), dict[str, Tensor]()
    with torch.no_grad():
        model(ids[:, :9], cache=cache)
        model(ids[:, 9:], cache=cache, tape=tape)
        whole: dict[str, Tensor] = {}
        model(ids, tape=whole)
    assert tape["decoder/1/self"].shape == (3, 4, 1, 10)
    assert (tape["decoder/1/self"] - whole["decoder/1/self"][:, :, 9:]).abs().max() < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_ids_beyond_the_vocabulary_are_refused(name: str) -> None:
    """In one sentence, and the cache is as it was: the same call with right ids goes on."""
    model, ids = model_of(name), tokens(3, 6, "plain")
    wrong = ids.clone()
    wrong[1, 2] = 13
    with pytest.raises(UsageError, match="Ids must be below the vocabulary of 13, but 13 was given"):
        ask(model, wrong)
    if isinstance(model, Encoder):
        return
    cache = begin(model, ids)
    with torch.no_grad():
        with pytest.raises(UsageError, match="Ids must be below"):
            ask(model, wrong, cache=cache)
        assert cache.length == 0
        assert (ask(model, ids, cache=cache) - ask(model, ids)).abs().max() < 1e-5


def test_one_row_of_positions_serves_all() -> None:
    """Given as (1, L): the same as one row for each, in every way attention may take."""
    model = model_of("gpt", length=400, pattern=of(Window, width=40), position=of(Rotary))
    assert isinstance(model, Decoder)
    ids = tokens(3, 300, "plain")
    with torch.no_grad():
        one = model.states(ids, torch.arange(300)[None])
        assert torch.equal(one, model.states(ids, torch.arange(300).expand(3, -1)))
        assert (one - model.states(ids)).abs().max() < 1e-4


# ---- encoder, decoder, both


def test_one_matrix_three_ways() -> None:
    """all: source, target and softmax; inputs; output; none."""
    shared = {}
    for tied in ("all", "inputs", "output", "none"):
        model = model_of("vanilla", tied=tied)
        assert isinstance(model, EncoderDecoder)
        target = (model.target or model.embed).weight
        shared[tied] = (model.embed.weight is target, model.head.weight is target)
    assert shared == {
        "all": (True, True),
        "inputs": (True, False),
        "output": (False, True),
        "none": (False, False),
    }


@pytest.mark.parametrize("name", ["vanilla", "t5"])
def test_a_target_needs_a_source(name: str) -> None:
    model, ids = model_of(name), tokens(3, 5, "plain")
    assert isinstance(model, EncoderDecoder)
    with pytest.raises(UsageError, match="A target needs a source"):
        model(None, ids)
    with pytest.raises(UsageError, match="A target needs a source"):
        model(None, ids, cache=model.cache(3))
    read = source(ids)
    memory = model.encode(read)
    assert isinstance(memory, Memory) and not memory.plain and torch.equal(memory.pos_BM, places(read))
    assert model.encode(read.clamp(min=0)).plain
    cache = model.cache(3)
    with torch.no_grad():
        first = model(read, ids[:, :2], cache=cache)
        rest = model(None, ids[:, 2:], cache=cache)
        assert (torch.cat([first, rest], 1) - model(read, ids)).abs().max() < 1e-4


def test_the_source_is_read_both_ways_and_the_target_is_not() -> None:
    model, ids = model_of("vanilla"), tokens(2, 6, "plain")
    read = tokens(2, 7, "plain", seed=3)
    later = read.clone()
    later[:, -1] = later[:, -1] % 12 + 1
    with torch.no_grad():
        assert (model(read, ids)[:, 0] - model(later, ids)[:, 0]).abs().max() > 1e-3


def test_segments_of_bert() -> None:
    model, ids = model_of("bert"), tokens(3)
    zeros = torch.zeros_like(ids)
    with torch.no_grad():
        assert torch.equal(model(ids), model(ids, zeros))
        assert (model(ids) - model(ids, zeros + 1))[ids >= 0].abs().max() > 1e-2
        odd = (zeros + 1).masked_fill(ids < 0, -1)
        assert torch.equal(model(ids, odd)[ids >= 0], model(ids, zeros + 1)[ids >= 0])


@pytest.mark.parametrize("head", ["pooled", "each"])
def test_bert_may_be_asked_other_things(head: str) -> None:
    model, ids = model_of("bert", head=head, classes=3), tokens(3)
    assert model(ids).shape == ((3, 3) if head == "pooled" else (3, 18, 3))
    assert padding_is_blind(model, "left") < 1e-4


def test_gqa_and_mqa_are_mha_with_repeated_keys() -> None:
    """The same weights, the groups written out: the same answers."""
    for groups in (1, 2):
        few = model_of("llama", groups=groups)
        many = model_of("llama")
        state = few.state_dict()
        for name, tensor in state.items():
            if name.endswith("qkv.weight"):
                q, k, v = tensor.split([16, groups * 4, groups * 4])
                k, v = (
                    t.view(groups, 4, 16).repeat_interleave(4 // groups, 0).reshape(16, 16) for t in (k, v)
                )
                state[name] = torch.cat([q, k, v])
        many.load_state_dict(state)
        ids = tokens(3)
        assert (few(ids) - many(ids))[ids >= 0].abs().max() < 1e-4


def test_build_does_not_disturb_the_callers_randomness() -> None:
    torch.manual_seed(5)
    before = torch.rand(3)
    torch.manual_seed(5)
    build(systems()["gpt"][""], seed=9)
    assert torch.equal(torch.rand(3), before)


def test_the_longest_sequence_is_known() -> None:
    assert model_of("gpt").limit == 48 and model_of("bert").limit == 48
    assert (
        model_of("llama").limit is None and model_of("t5").limit is None and model_of("vanilla").limit is None
    )
