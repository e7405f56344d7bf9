"""Costs: exact numbers of known models, the cache against the real cache, products against a formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import regard
from regard import cost as costs
from regard.blank import blank
from regard.cost import cache_bytes, cost, cost_of, memory_bytes, parameters, table
from regard.laws.subjects import systems
from regard.model import Decoder, EncoderDecoder
from regard.nn.pattern import Local, Strided, Window
from regard.spec import of

# Parameters of the published models, counted in their reference implementations.
KNOWN = [
    ("gpt", "small", 124_439_808),
    ("gpt", "xl", 1_557_611_200),
    ("t5", "base", 222_903_552),
    ("t5", "small", 60_506_624),
    ("llama", "7b", 6_738_415_616),
    ("llama", "llama3-8b", 8_030_261_248),
]


@pytest.mark.parametrize(("system", "size", "count"), KNOWN)
def test_parameters_of_known_models(system: str, size: str, count: int) -> None:
    with blank():
        assert parameters(regard.system(system, size=size).build()).total == count


def test_gemma_cache_is_one_and_a_third_gib() -> None:
    """FACTS, error 14: 2 x 4096 x 8 x 256 x 42 x 2 bytes, not heads times the whole width."""
    with blank():
        model = regard.system("llama", size="gemma2-9b").build()
    [(formula, found)] = cache_bytes(model, 1, 4096)
    assert found == 2 * 4096 * 8 * 256 * 42 * 2 and found / 2**30 == 1.3125
    assert formula == "2 x 1 x 4096 tokens x 8 groups x 256 head x 42 layers x 2 bytes"
    assert sum(b for _, b in cache_bytes(model, 1, 4096, "fp32")) / 2**30 == 2.625
    [(formula, found)] = cache_bytes(model, 1, 4096, cache="int8")
    assert found == 2 * 4096 * 8 * (256 + 2) * 42
    assert formula == "2 x 1 x 4096 tokens x 8 groups x (256 head + 2 scale) x 42 layers x 1 byte"


@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("window", [None, 5, 40])
def test_cache_bytes_equal_the_cache(groups: int, window: int | None) -> None:
    pattern = {} if window is None else {"pattern": of(Window, width=window)}
    recipe = regard.system(
        "llama", vocab=11, width=32, heads=4, head=6, layers=3, length=32, groups=groups, **pattern
    )
    model = regard.build(recipe)
    assert isinstance(model, Decoder)
    for length in (None, 16):
        cache = model.cache(batch=2, length=length)
        with torch.no_grad():
            model(torch.randint(0, 11, (2, 16)), cache=cache)
        assert sum(b for _, b in cache_bytes(model, 2, 16, "fp32")) == cache.nbytes


def test_folded_keys_and_bytes_are_counted() -> None:
    recipe = regard.system("memory_compressed", vocab=11, width=32, heads=4, layers=2, length=64, local=9)
    model = regard.build(recipe)
    assert isinstance(model, Decoder)
    for precision in ("full", "int8"):
        cache = model.cache(2, precision=precision)  # type: ignore[arg-type]
        with torch.no_grad():
            model(torch.randint(0, 11, (2, 50)), cache=cache)
        assert cost(recipe, 2, 50, "fp32", cache=precision).cache == cache.nbytes  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(systems()))
def test_every_system_keeps_what_is_said(name: str) -> None:
    model, ids = regard.build(systems()[name][""]), torch.randint(0, 13, (2, 20))
    for precision in ("full", "int8"):
        cache = model.cache(2, precision=precision)  # type: ignore[arg-type]
        with torch.no_grad():
            if isinstance(model, EncoderDecoder):
                model(ids, ids, cache=cache)
            elif isinstance(model, Decoder):
                model(ids, cache=cache)
        assert sum(b for _, b in cache_bytes(model, 2, 20, "fp32", precision)) == cache.nbytes  # type: ignore[arg-type]


@pytest.mark.parametrize("states", [True, False])
@pytest.mark.parametrize("window", [None, 5])
def test_a_memory_over_segments_is_counted(states: bool, window: int | None) -> None:
    pattern = {} if window is None else {"pattern": of(Window, width=window)}
    given = {"vocab": 11, "width": 32, "heads": 4, "layers": 3, "length": 64, "groups": 2}
    model = regard.build(regard.system("llama", **given, **pattern))
    assert isinstance(model, Decoder)
    memory = model.recent(2, 9, states)
    for _ in range(3):
        model.states(torch.randint(0, 11, (2, 7)), cache=memory)
    assert sum(b for _, b in memory_bytes(model, 2, 9, "fp32", states)) == memory.nbytes
    [(text, _)] = memory_bytes(model, 2, 9, "fp32", states)
    if states and window is None:
        assert text == "2 x 9 tokens x 32 x 3 layers x 4 bytes"
        assert "memory" in table(cost_of("llama", ["size=7b", "layers=2"], length=16, memory=8))


def test_cache_bytes_of_an_encoder_decoder_count_the_source_too() -> None:
    model = regard.build(regard.system("vanilla", vocab=11, width=32, heads=4, layers=2, length=32))
    assert isinstance(model, EncoderDecoder)
    cache = model.cache(batch=3)
    ids = torch.randint(0, 11, (3, 16))
    with torch.no_grad():
        model(ids, ids, cache=cache)
    assert sum(b for _, b in cache_bytes(model, 3, 16, "fp32")) == cache.nbytes
    assert cache.nbytes == 2 * (2 * 3 * 16 * 32 * 2 * 4)  # as much again for the source


def test_products_of_a_token() -> None:
    """Two FLOPs a weight and token, and for each earlier token two products over the width."""
    width, layers, length, vocab, hidden = 32, 3, 16, 50, 64
    options = {
        "vocab": vocab,
        "width": width,
        "heads": 4,
        "layers": layers,
        "length": length,
        "hidden": hidden,
    }
    found = cost(regard.system("llama", **options))
    weights = layers * (4 * width * width + 3 * width * hidden) + width * vocab
    seen = (length + 1) / 2  # the mean over positions of how many keys are seen
    assert found.flops == int(2 * weights + layers * 4 * width * seen)


@pytest.mark.parametrize(
    "pattern",
    [of(Window, width=32), of(Strided, stride=24), of(Local, width=100)],
    ids=["window", "strided", "local"],
)
def test_sparse_attention_is_counted_as_it_runs(pattern: Any) -> None:
    """Without numbers the same products are found as with them, and fewer than a dense one has."""
    given = {"vocab": 50, "width": 32, "heads": 4, "layers": 2, "length": 900}
    recipe = regard.system("gpt", **given, pattern=pattern)
    found = cost(recipe, precision="fp32").flops
    assert found == costs._flops(regard.build(recipe), 1, 900) // 900
    assert found < cost(regard.system("gpt", **given), precision="fp32").flops


def test_products_and_activations_grow_with_the_batch_alone() -> None:
    recipe = regard.system("gpt", vocab=50, width=32, heads=4, layers=2, length=16)
    one, four = cost(recipe, batch=1), cost(recipe, batch=4)
    assert one.flops == four.flops
    assert 3 * one.activations < four.activations <= 4 * one.activations


def test_activations_are_those_that_autograd_keeps() -> None:
    recipe = regard.system("gpt", vocab=50, width=32, heads=4, layers=2, length=16)
    kept: dict[int, int] = {}
    model = regard.build(recipe)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(torch.zeros(1, 16, dtype=torch.long))
    assert logits.requires_grad
    assert cost(recipe, precision="fp32").activations == pytest.approx(sum(kept.values()), rel=0.05)


def test_encoders_remember_nothing() -> None:
    found = cost_of("bert", ["size=tiny"])
    assert found.cache == 0 and found.data["cache_bytes"] == 0


def test_building_the_largest_takes_no_memory() -> None:
    """70 billion weights would be 130 GiB; four of its 80 layers are 7 GiB."""
    found = cost_of("llama", ["size=llama2-70b", "layers=4"], length=16)
    assert found.parameters.total == 68_976_648_192 - 76 * 855_654_400
    assert torch.get_default_dtype() == torch.float32
