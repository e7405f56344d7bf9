"""Packed weights: the same answers or nearly, whoever else is answered, and by the formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import regard
import regard.packed
from regard.decode import Rules, generate
from regard.errors import UsageError
from regard.model import EncoderDecoder
from regard.packed import Half, Held, Packed, PackedHead, Precision, Whole, has_bf16, packed, sums_bytes

SYSTEMS = ["gpt", "llama", "vanilla", "t5", "transformer_xl", "reformer", "adaptive_span"]
NEAR: dict[Precision, float] = {"fp32": 1e-5, "bf16": 0.05, "int8": 0.05}


@pytest.fixture(params=["its own way", "float16"])
def processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The processor as it is, and as one that multiplies neither bfloat16 nor bytes."""
    if request.param == "float16":
        monkeypatch.setattr(regard.packed, "has_bf16", lambda: False)
        monkeypatch.setattr(regard.packed, "sums_bytes", lambda: False)
    return str(request.param)


def built(name: str, **more: Any) -> Any:
    sizes = {"vocab": 37, "width": 32, "heads": 4, "layers": 2, "length": 32}
    return regard.build(regard.system(name, **sizes, **more)).eval()


def asked(model: Any, ids_BL: Tensor) -> Tensor:
    with torch.no_grad():
        return model(ids_BL, ids_BL) if isinstance(model, EncoderDecoder) else model(ids_BL)  # type: ignore[no-any-return]


@pytest.mark.parametrize("precision", NEAR)
@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_answers_as_before(name: str, precision: Precision) -> None:
    """And the model it was made from is left as it was."""
    model, ids_BL = built(name), torch.randint(0, 37, (3, 16))
    before = asked(model, ids_BL)
    ready = packed(model, precision)
    found = asked(ready, ids_BL)
    far = (found - before).abs()  # rounding may send a token of the Reformer to another bucket
    assert (far.max() if precision == "fp32" else far.mean()) < NEAR[precision] * before.abs().mean()
    assert isinstance(ready.head, PackedHead) and any(isinstance(m, Packed) for m in ready.modules())
    if precision != "fp32":
        assert not torch.equal(found, before), "nothing was rounded"
    assert torch.equal(asked(model, ids_BL), before)


@pytest.mark.parametrize("precision", NEAR)
def test_batch_mates_padding_and_caches_change_nothing(processor: str, precision: Precision) -> None:
    """Wild batch-mates: a scale for the whole batch would drown the others."""
    model = built("gpt")
    with torch.no_grad():
        model.embed.weight[0] *= 100
    ready = packed(model, precision)
    ids_BL = torch.randint(1, 37, (3, 12))
    ids_BL[1] = 0
    whole = asked(ready, ids_BL)
    for row in (0, 2):
        alone = asked(ready, ids_BL[row : row + 1])
        assert (alone - whole[row]).abs().max() < 1e-4
        padded = torch.cat([torch.full((1, 3), -1), ids_BL[row : row + 1]], 1)
        assert (asked(ready, padded)[:, 3:] - alone).abs().max() < 1e-4
        cache = ready.cache(1)
        with torch.no_grad():
            steps = [ready(ids_BL[row : row + 1, t : t + 1], cache=cache) for t in range(12)]
        assert (torch.cat(steps, 1) - alone).abs().max() < 1e-4


@pytest.mark.parametrize("biased", [True, False])
def test_whole_numbers_by_the_formula(processor: str, biased: bool) -> None:
    x, weight = torch.randn(5, 24) * torch.tensor([[1.0], [100.0], [1e-3], [0.0], [3.0]]), torch.randn(7, 24)
    bias = torch.randn(7) if biased else None
    wanted = torch.zeros(5, 7, dtype=torch.float64)
    for n in range(5):
        for m in range(7):
            s_x, s_w = float(x[n].abs().max()) / 127 or 1.0, float(weight[m].abs().max()) / 127
            pairs = zip((x[n].double() / s_x).round(), (weight[m].double() / s_w).round(), strict=True)
            wanted[n, m] = s_x * s_w * sum(float(a * b) for a, b in pairs) + (
                float(bias[m]) if biased else 0.0
            )  # type: ignore[index]
    found = Whole(weight, bias)(x)
    # a number that lies half-way may be rounded to either side
    room = 1.01 * (x.abs().amax(1, keepdim=True) / 127) * (weight.abs().amax(1) / 127) * 127
    assert ((found - wanted).abs() <= room + 1e-5).all()
    exact = ((found - wanted).abs() <= 1e-5 * (1 + wanted.abs())).double().mean()
    assert exact > 0.9


def test_the_largest_whole_numbers_are_summed_without_loss(processor: str) -> None:
    """Processors without VNNI add pairs of products in 16 bits: 2 x 255 x 127 does not fit."""
    found = Whole(torch.ones(32, 64), None)(torch.ones(5, 64))
    assert (found - 64.0).abs().max() < 1e-3
    assert (Whole(torch.ones(32, 64), None).held is None) == (processor != "float16" and sums_bytes())


def test_half_precision_rounds_what_it_is_given(processor: str) -> None:
    x, weight, bias = torch.randn(5, 24), torch.randn(7, 24), torch.randn(7)
    wanted = F.linear(*(t.bfloat16().double() for t in (x, weight, bias)))
    half = Half(weight, bias)
    assert (half(x) - wanted).abs().max() < 0.01 * wanted.abs().max()
    assert (half.held is None) == (processor != "float16" and has_bf16())
    if half.held is not None:  # the same numbers, and only the sum is rounded
        assert (half(x) - wanted).abs().max() < 1e-5


def test_float16_holds_bfloat16_and_bytes_or_says_that_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    powers = torch.tensor([[2.0**-14, 2.0**15 * 1.9921875, -1.0078125, 127.0]])
    assert torch.equal(Held(powers)(torch.eye(4)).T, powers)
    with pytest.raises(UsageError, match=r"at most 65,504 to stand in 16 bits .* but 70144 is among them"):
        Held(torch.tensor([[1.0, -70_144.0]]))
    monkeypatch.setattr(type(torch.backends.quantized), "supported_engines", ["none"])
    with pytest.raises(UsageError, match="give precision fp32, or none"):
        Held(powers)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when its compiler is imported
def test_a_compiler_takes_a_held_matrix_for_a_number() -> None:
    x, held = torch.randn(2, 3, 24), Held(torch.randn(7, 24))
    torch.compiler.reset()
    with torch.no_grad():
        assert torch.equal(torch.compile(held, fullgraph=True, backend="aot_eager")(x), held(x))
    given = x, held.number, held.rows
    torch.library.opcheck(torch.ops.regard.held.default, given, test_utils=["test_schema", "test_faketensor"])


@pytest.mark.parametrize("rules", [Rules(length=8), Rules(length=8, method="beam", beam=3)])
def test_it_writes(rules: Rules) -> None:
    model, prompts = built("gpt"), [[1, 2, 3], [4]]
    plain, ready = generate(model, prompts, rules=rules), generate(packed(model), prompts, rules=rules)
    assert [h[0].ids for h in plain] == [h[0].ids for h in ready]


def test_what_cannot_be_packed_is_refused() -> None:
    with pytest.raises(UsageError, match="precision must be fp32, bf16 or int8, but is 'int4'"):
        packed(built("gpt"), "int4")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="being trained"):
        packed(built("gpt").train())
