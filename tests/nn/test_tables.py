"""Numbers that papers and their code give: waves, buckets, slopes, norms, bends, counts of weights."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

import regard
from regard.dims import Dims
from regard.nn.context import Context
from regard.nn.ffn import ACTIVATIONS, Dense, Gated
from regard.nn.norm import Layer, Norm, Rms
from regard.nn.position import Alibi
from regard.nn.position.alibi import slopes
from regard.nn.position.sinusoidal import waves
from regard.nn.position.t5_bias import bucket

CONTEXT = Context(torch.zeros(1, 1, dtype=torch.long))


def at(*positions: int) -> Tensor:
    return torch.tensor([positions])


# Sinusoids: Vaswani et al. 2017, section 3.5


def test_the_first_positions_of_the_paper() -> None:
    first, second = waves(at(0, 1), 512)[0]
    assert first.tolist() == [0.0, 1.0] * 256  # positions and pairs count from 0
    assert second[0].item() == pytest.approx(math.sin(1), abs=1e-7)  # the first wavelength is 2 pi
    assert second[1].item() == pytest.approx(math.cos(1), abs=1e-7)
    assert second[2].item() == pytest.approx(math.sin(10_000 ** (-2 / 512)), abs=1e-7)


@pytest.mark.parametrize(
    ("form", "pair", "wavelength"), [("paper", 510, 60_611), ("tensor2tensor", 255, 62_832)]
)
def test_the_longest_wavelength(form: str, pair: int, wavelength: int) -> None:
    """2 pi 10000^(510/512) in the paper; tensor2tensor's exponent i / (D/2 - 1) ends at 10000 itself."""
    rate = math.asin(waves(at(1), 512, form)[0, 0, pair].item())
    assert 2 * math.pi / rate == pytest.approx(wavelength, abs=0.5)


def test_tensor2tensor_puts_sines_before_cosines() -> None:
    width, pos = 8, 5
    rates = [10_000 ** (-i / 3) for i in range(4)]
    wanted = [math.sin(pos * rate) for rate in rates] + [math.cos(pos * rate) for rate in rates]
    assert waves(at(pos), width, "tensor2tensor")[0, 0].tolist() == pytest.approx(wanted, abs=1e-6)
    assert waves(at(0), width, "tensor2tensor")[0, 0].tolist() == [0.0] * 4 + [1.0] * 4


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_step_is_a_rotation(step: int) -> None:
    """PE(pos + k) = R_k PE(pos), the same R_k for every pos: the reason the paper gives for waves."""
    width, pos = 64, torch.arange(50)[None]
    here, there = waves(pos, width), waves(pos + step, width)
    turn = torch.zeros(width, width)
    for i in range(0, width, 2):
        angle = step * 10_000 ** (-i / width)
        turn[i, i] = turn[i + 1, i + 1] = math.cos(angle)
        turn[i, i + 1], turn[i + 1, i] = math.sin(angle), -math.sin(angle)
    assert (there - here @ turn.T).abs().max() <= 1e-6


def test_waves_far_away_are_still_exact() -> None:
    """A position beyond what float32 can multiply without loss."""
    assert waves(at(1_000_003), 4)[0, 0, 0].item() == pytest.approx(math.sin(1_000_003), abs=1e-6)


# T5's buckets: Raffel et al. 2020, as in the authors' code; gap = key position - query position

BOTH_WAYS = {0: 0, -1: 1, -7: 7, -8: 8, -16: 10, -64: 14, -127: 15, -128: 15, -5000: 15}
BOTH_WAYS |= {1: 17, 8: 24, 64: 30, 127: 31, 128: 31, 5000: 31}
BACKWARDS = {0: 0, -15: 15, -16: 16, -32: 21, -64: 26, -127: 31, -128: 31, -5000: 31, 1: 0, 200: 0}


@pytest.mark.parametrize(("causal", "wanted"), [(False, BOTH_WAYS), (True, BACKWARDS)])
def test_buckets_of_the_dossier(causal: bool, wanted: dict[int, int]) -> None:
    found = bucket(torch.tensor(list(wanted)), 32, 128, causal)
    assert dict(zip(wanted, found.tolist(), strict=True)) == wanted


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 20), (64, 256)])
def test_buckets_of_transformers(causal: bool, buckets: int, distance: int) -> None:
    gap = torch.arange(-600, 601)
    theirs = T5Attention._relative_position_bucket(gap, not causal, buckets, distance)
    assert torch.equal(bucket(gap, buckets, distance, causal), theirs)


# ALiBi's slopes: Press et al. 2022, section 3


def test_slopes_of_the_paper() -> None:
    assert slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert slopes(16) == pytest.approx([2 ** (-n / 2) for n in range(1, 17)])
    # 12 heads: the 8 slopes above, then every second one of 16 heads
    assert slopes(12) == pytest.approx(slopes(8) + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])


@pytest.mark.parametrize("heads", [1, 2, 6, 8, 12, 20])
def test_slopes_of_transformers(heads: int) -> None:
    """Bloom adds slope x key position, which the softmax cannot tell from -slope x distance."""
    theirs = build_alibi_tensor(torch.ones(1, 5), heads, torch.float32)[:, 0]
    assert torch.allclose(torch.tensor(slopes(heads)), theirs[:, 1], atol=1e-7)
    pos = torch.arange(5)[None]
    bias = Alibi(Dims(width=heads, heads=heads)).bias(torch.zeros(1, heads, 5, 1), pos, pos)
    last = bias[0, :, -1]
    assert torch.allclose(last - last[:, :1], theirs, atol=1e-6)


# Norms: Ba et al. 2016; Zhang and Sennrich 2019


@pytest.mark.parametrize(("kind", "other"), [(Layer, nn.LayerNorm), (Rms, nn.RMSNorm)])
@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.1])
def test_norms_of_torch(kind: type[Layer | Rms], other: type[nn.LayerNorm | nn.RMSNorm], eps: float) -> None:
    ours, theirs, x = kind(Dims(width=24), eps=eps), other(24, eps=eps), torch.randn(3, 5, 24) * 2 + 1
    for mine, its in zip(ours.parameters(), theirs.parameters(), strict=True):
        its.data = mine.data = mine.data + torch.randn(24)
    assert torch.allclose(ours(x), theirs(x), atol=1e-6)


def test_norms_by_their_formula() -> None:
    """eps stands inside the root, beside a variance with 1/D; RMS takes no mean away."""
    x = [3.0, -1.0, 0.5, 7.5]
    mean, eps = sum(x) / 4, 0.5
    spread = math.sqrt(sum((value - mean) ** 2 for value in x) / 4 + eps)
    size = math.sqrt(sum(value**2 for value in x) / 4 + eps)
    found = [kind(Dims(width=4), eps=eps)(torch.tensor([[x]]))[0, 0].tolist() for kind in (Layer, Rms)]
    assert found[0] == pytest.approx([(value - mean) / spread for value in x], abs=1e-6)
    assert found[1] == pytest.approx([value / size for value in x], abs=1e-6)


@pytest.mark.parametrize(
    ("name", "size", "kind", "eps"),
    [("gpt", "small", Layer, 1e-5), ("bert", "base", Layer, 1e-12), ("t5", "small", Rms, 1e-6)],
)
def test_norms_of_the_systems(name: str, size: str, kind: type[Norm], eps: float) -> None:
    norms = [m for m in on_paper(name, size).modules() if isinstance(m, Norm)]
    assert norms and all(isinstance(norm, kind) and norm.eps == eps for norm in norms)


# Activations and gates: Narang et al. 2021, table 1; Shazeer 2020


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


BENDS = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_sigmoid": lambda x: x * sigmoid(1.702 * x),
    "silu": lambda x: x * sigmoid(x),
    "elu": lambda x: x if x > 0 else math.exp(x) - 1,
    "selu": lambda x: 1.0507009873554805 * (x if x > 0 else 1.6732632423543772 * (math.exp(x) - 1)),
    "sigmoid": sigmoid,
    "softplus": lambda x: math.log1p(math.exp(x)),
    "tanh": math.tanh,
    "identity": lambda x: x,
}


def test_every_activation_has_its_formula() -> None:
    assert set(BENDS) == set(ACTIVATIONS)


@pytest.mark.parametrize("name", sorted(BENDS))
def test_activations_by_their_formula(name: str) -> None:
    x = [-4.0, -1.5, -0.3, 0.0, 0.2, 1.0, 3.5]
    wanted = [BENDS[name](value) for value in x]
    assert ACTIVATIONS[name](torch.tensor(x)).tolist() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("name", ["sigmoid", "gelu", "relu", "silu", "identity"])  # GLU Ge Re Swi Li
def test_gates_by_their_formula(name: str) -> None:
    gated = Gated(Dims(width=6), hidden=5, activation=name)
    x = torch.randn(2, 3, 6)
    gate, value = gated.up.weight.split(5)
    wanted = (ACTIVATIONS[name](x @ gate.T) * (x @ value.T)) @ gated.down.weight.T
    assert torch.allclose(gated(x, CONTEXT), wanted, atol=1e-6)


def test_a_gate_of_two_thirds_weighs_as_much() -> None:
    dims = Dims(width=768)
    dense, gated = Dense(dims, hidden=3072, bias=False), Gated(dims, hidden=2048)
    assert count(dense) == count(gated) == 2 * 768 * 3072
    assert Gated(dims).down.in_features == 2048  # 8/3 of the width is what it takes by itself


# Counts of weights


def count(model: nn.Module) -> int:
    """Weights that training changes, shared ones once."""
    return sum(weight.numel() for weight in model.parameters())


def on_paper(name: str, size: str | None = None, **options: object) -> nn.Module:
    """A system without memory for its weights."""
    with torch.device("meta"):
        return regard.build(regard.system(name, size, **options))


@pytest.mark.parametrize(
    ("size", "wanted"),
    [("small", 124_439_808), ("medium", 354_823_168), ("large", 774_030_080), ("xl", 1_557_611_200)],
)
def test_weights_of_gpt2(size: str, wanted: int) -> None:
    assert count(on_paper("gpt", size)) == wanted
    if size == "small":
        with torch.device("meta"):
            assert count(GPT2LMHeadModel(GPT2Config())) == wanted


LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}


@pytest.mark.parametrize(("size", "sizes"), [("base", {}), ("large", LARGE)])
def test_weights_of_bert(size: str, sizes: dict[str, int]) -> None:
    with torch.device("meta"):
        theirs = BertForMaskedLM(BertConfig(**sizes))
    assert count(on_paper("bert", size)) == count(theirs)


def test_weights_of_gpt1() -> None:
    with torch.device("meta"):
        theirs = OpenAIGPTLMHeadModel(OpenAIGPTConfig())
    assert count(on_paper("gpt", "gpt1")) == count(theirs) == 116_534_784


def test_weights_of_bert_base_are_those_published() -> None:
    """The body with its pooling layer, as it is counted everywhere; the paper rounds to 110M."""
    pooled = on_paper("bert", "base", head="pooled", classes=2)
    assert count(pooled) - (2 * 768 + 2) == 109_482_240
    assert count(on_paper("bert", "base")) == 109_514_298


T5_SIZES = {
    "small": (60_506_624, {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8}),
    "base": (222_903_552, {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}),
    "small-1.1": (76_961_152, {"d_model": 512, "d_ff": 1024, "num_layers": 8, "num_heads": 6}),
    "base-1.1": (247_577_856, {"d_model": 768, "d_ff": 2048, "num_layers": 12, "num_heads": 12}),
}


@pytest.mark.parametrize("size", sorted(T5_SIZES))
def test_weights_of_t5(size: str) -> None:
    wanted, sizes = T5_SIZES[size]
    new = size.endswith("1.1")
    with torch.device("meta"):
        config = T5Config(**sizes, feed_forward_proj="gated-gelu" if new else "relu", vocab_size=32_128)
        theirs = T5ForConditionalGeneration(config)
    untied = theirs.lm_head.weight.numel() if new else 0  # transformers 5 is born tied, 1.1 or not
    assert count(on_paper("t5", size)) == count(theirs) + untied == wanted


def test_weights_of_the_transformer() -> None:
    """By hand. The paper says 65M and 213M and does not say what it counts: 3 % and 1 % away."""
    for size, width, hidden, paper, near in [
        ("base", 512, 2048, 65e6, 0.03),
        ("big", 1024, 4096, 213e6, 0.01),
    ]:
        attention, norm = 4 * width**2 + 4 * width, 2 * width
        ffn = 2 * width * hidden + hidden + width
        encoder, decoder = attention + ffn + 2 * norm, 2 * attention + ffn + 3 * norm
        wanted = 37_000 * width + 6 * (encoder + decoder)
        assert count(on_paper("vanilla", size)) == wanted
        assert wanted == pytest.approx(paper, rel=near)


TABLE_3 = [("layers", 2, 36), ("layers", 4, 50), ("layers", 8, 80), ("heads", 1, 65), ("heads", 32, 65)]
TABLE_3 += [("hidden", 1024, 53), ("hidden", 4096, 90)]


@pytest.mark.parametrize(("option", "value", "paper"), TABLE_3)
def test_rows_of_table_3(option: str, value: int, paper: int) -> None:
    """Vaswani et al. 2017, table 3, in millions: what a change adds to base, whatever base is counted as."""
    change = (
        count(on_paper("vanilla", "base", **{option: value})) - count(on_paper("vanilla", "base"))
    ) / 1e6
    assert abs(change - (paper - 65)) < 1  # both numbers of the paper are rounded
