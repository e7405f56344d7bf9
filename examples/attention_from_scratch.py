"""Attention in three steps, each in a few lines, and that the library says the same.

1. Self-attention without queries, keys and values: every token is the mean of all, weighted by likeness.
2. Queries, keys and values: three matrices, one head.
3. Several heads, in a loop, one after the other; the library computes them all at once.

python examples/attention_from_scratch.py
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.dims import Dims
from regard.nn.attend import attend
from regard.nn.context import Context
from regard.nn.mixer import Attention
from regard.nn.pattern import Causal, Full
from regard.nn.score import Dot
from regard.spec import of


def plain(x_LD: Tensor) -> Tensor:
    """y_i = sum_j w_ij x_j with w_ij = exp(x_i . x_j) / sum_r exp(x_i . x_r): nothing is learned."""
    rows = []
    for x_i in x_LD:
        likeness = torch.stack([x_i @ x_j for x_j in x_LD])
        w = likeness.exp() / likeness.exp().sum()  # over keys: each token's weights sum to one
        rows.append(sum((w_j * x_j for w_j, x_j in zip(w, x_LD, strict=True)), torch.zeros_like(x_i)))
    return torch.stack(rows)


def head(x_LD: Tensor, query: Tensor, key: Tensor, value: Tensor, causal: bool = False) -> Tensor:
    """y_i = sum_j w_ij v_j with w_ij ~ exp(q_i . k_j / sqrt(K)): what asks, what answers and what is said."""
    q_LK, k_LK, v_LK = (x_LD @ matrix.mT for matrix in (query, key, value))
    s_LL = q_LK @ k_LK.mT / math.sqrt(q_LK.shape[1])  # inside the exponent, the width of one head
    if causal:
        ahead = torch.ones(len(x_LD), len(x_LD), dtype=torch.bool).triu(1)
        s_LL = s_LL.masked_fill(ahead, float("-inf"))  # scores, before they are weights
    return s_LL.softmax(-1) @ v_LK


def heads(x_LD: Tensor, layer: Attention, causal: bool = False) -> Tensor:
    """Head after head with its own three matrices; side by side, they go through one more."""
    said, size = [], layer.size
    queries, keys, values = layer.qkv.weight.chunk(3)
    for h in range(layer.heads):
        mine = slice(h * size, (h + 1) * size)
        said.append(head(x_LD, queries[mine], keys[mine], values[mine], causal))
    together: Tensor = layer.out(torch.cat(said, -1))
    return together


def main() -> None:
    """The library's `attend` is the only softmax over keys; here it is asked for each of the three."""
    torch.manual_seed(0)
    x_LD, dims = torch.randn(6, 16, dtype=torch.float64), Dims(width=16, heads=4)
    pos = torch.arange(6)[None]
    ctx, whole = Context(pos, plain=True), x_LD[None, None]

    alike = attend(whole, whole, whole, pos, ctx, score=Dot(dims, scale=1.0), pattern=Full())[0, 0]
    apart = {"without queries, keys and values": (alike - plain(x_LD)).abs().max()}

    query, key, value = (torch.randn(4, 16, dtype=torch.float64) for _ in range(3))
    q, k, v = ((x_LD @ matrix.mT)[None, None] for matrix in (query, key, value))
    single = attend(q, k, v, pos, ctx, score=Dot(dims), pattern=Full())[0, 0]
    apart["one head"] = (single - head(x_LD, query, key, value)).abs().max()

    for name, causal in (("four heads", False), ("four heads that look back", True)):
        pattern = of(Causal) if causal else of(Full)
        layer = Attention(dims, pattern=pattern, bias=False).double()
        apart[name] = (layer(x_LD[None], ctx)[0] - heads(x_LD, layer, causal)).abs().max()

    for name, difference in apart.items():
        print(f"{name}: the library differs from the loop by {float(difference.detach()):.1e}")
        assert difference < 1e-12


if __name__ == "__main__":
    main()
