"""Transformer-XL: the sizes of the paper, and its segments against the equations, written out."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from regard.cost import cost_of
from regard.laws import lively
from regard.laws.asking import gap, tokens
from regard.model import Decoder
from regard.nn.pattern import Window
from regard.nn.position.sinusoidal import waves
from regard.spec import of

SIZES = {"vocab": 13, "width": 8, "heads": 2, "layers": 3, "length": 8, "hidden": 12}


@pytest.mark.parametrize(
    ("size", "millions"), [("enwik8_base", 41), ("enwik8_large", 277), ("wt103_base", 151)]
)
def test_as_many_parameters_as_in_the_paper(size: str, millions: int) -> None:
    assert cost_of("transformer_xl", [f"size={size}"]).parameters.total // 10**6 == millions


def xl(**options: object) -> Decoder:
    model = lively(regard.system("transformer_xl", **{**SIZES, **options}))
    assert isinstance(model, Decoder)
    return model


def as_written(model: Decoder, ids_L: Tensor, segment: int, memory: int) -> Tensor:
    """Dai et al. 2019, the four terms of section 3.3 and the recurrence of 3.2, a loop over each pair."""
    w = {name: p.double() for name, p in model.named_parameters()}
    D, H, K = 8, 2, 4
    u, v = w["decoder.position.u"], w["decoder.position.v"]
    table = waves(torch.arange(20), D, "halves").double()  # made in fp32
    rate = 10000 ** (-torch.arange(0, D, 2, dtype=torch.double) / D)
    angle = torch.arange(20, dtype=torch.double)[:, None] * rate
    assert gap(table, torch.cat([angle.sin(), angle.cos()], 1)) < 1e-6

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (D,), w[f"{name}.weight"], w[f"{name}.bias"])

    held: list[Tensor] = [torch.zeros(0, D, dtype=torch.double)] * 3  # of each layer: what it read
    said = []
    for start in range(0, len(ids_L), segment):
        x = w["embed.weight"][ids_L[start : start + segment]] * math.sqrt(D)
        for n in range(3):
            at = f"decoder.blocks.{n}.sublayers"
            whole = torch.cat([held[n].detach(), x])
            old = len(held[n])
            q_, k_, v_ = w[f"{at}.self.body.qkv.weight"].chunk(3)
            r_ = w[f"decoder.position.keys.{n}.weight"]
            rows = []
            for i in range(len(x)):
                heads = []
                for h in range(H):
                    own = slice(h * K, (h + 1) * K)
                    query, scores = q_[own] @ x[i], []
                    for j in range(old + i + 1):
                        r = r_[own] @ table[old + i - j]
                        key = k_[own] @ whole[j]
                        terms = query @ key + query @ r + u[h] @ key + v[h] @ r
                        scores.append(terms / math.sqrt(K))
                    weights = torch.stack(scores).softmax(0)
                    heads.append(weights @ (whole[: old + i + 1] @ v_[own].T))
                rows.append(w[f"{at}.self.body.out.weight"] @ torch.cat(heads))
            held[n] = whole[max(0, len(whole) - memory) :]
            x = norm(x + torch.stack(rows), f"{at}.self.norm")
            up = (x @ w[f"{at}.ffn.body.up.weight"].T + w[f"{at}.ffn.body.up.bias"]).relu()
            down = up @ w[f"{at}.ffn.body.down.weight"].T + w[f"{at}.ffn.body.down.bias"]
            x = norm(x + down, f"{at}.ffn.norm")
        said.append(x @ w["embed.weight"].T + w["head.bias"])
    return torch.cat(said)


def test_segments_against_the_equations_with_gradients() -> None:
    model, ids_L = xl().double(), tokens(1, 11, "plain")[0]
    cache = model.recent(1, memory=5, states=True)
    edges = itertools.pairwise([0, 4, 8, 11])
    got = torch.cat([model(ids_L[None, a:b], cache=cache)[0] for a, b in edges])
    want = as_written(model, ids_L, 4, 5)
    assert gap(got, want) <= 1e-9
    weight = torch.randn(want.shape, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    parameters = list(model.parameters())
    ours, theirs = (torch.autograd.grad((y * weight).sum(), parameters) for y in (got, want))
    assert max(map(gap, ours, theirs)) <= 1e-9


def test_same_length_and_clamp() -> None:
    """All queries see 6 keys, whatever the segments; beyond the clamp all distances are one."""
    model, ids_BL = xl(pattern=of(Window, width=6), clamp=4), tokens(2, 24, "plain")
    with torch.no_grad():
        whole = model(ids_BL)
        for length in (1, 5, 24):
            cache = model.recent(2, memory=5)
            pieces = [model(ids_BL[:, a : a + length], cache=cache) for a in range(0, 24, length)]
            assert gap(torch.cat(pieces, 1), whole) <= 1e-5
        assert gap(xl(pattern=of(Window, width=6))(ids_BL), whole) > 1e-3
