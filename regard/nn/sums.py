"""The weighted sum itself: by PyTorch's kernel, or written out."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from regard.nn.context import Context


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    allow: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    dropout: float,
) -> Tensor:
    """softmax(scale q k^T + bias) v where `allow`, by one kernel. H heads may share G groups of keys."""
    mask = allow if bias is None else bias if allow is None else bias.masked_fill(~allow, float("-inf"))
    if mask is not None and mask.dtype.is_floating_point:
        mask = mask.to(q.dtype)
    causal, grouped = bool(causal), bool(q.shape[1] != k.shape[1])  # plain bools where a compiler traces
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale, enable_gqa=grouped)


def explicit(
    s_BHLM: Tensor,
    v_BHMK: Tensor,
    allow: Tensor | None,
    bias: Tensor | None,
    more: Callable[[Tensor], Tensor] | None,
    dropout: float,
    ctx: Context,
) -> Tensor:
    """softmax(s + bias) v where `allow`, from scores, and what `more` reads by the same weights."""
    if bias is not None:
        s_BHLM = s_BHLM + bias
    if allow is not None:
        s_BHLM = s_BHLM.masked_fill(~allow, float("-inf"))
        w_BHLM = s_BHLM.softmax(-1).masked_fill(~allow, 0.0)  # a query that may see nothing reads nothing
    else:
        w_BHLM = s_BHLM.softmax(-1)
    if ctx.tape is not None:
        ctx.tape[ctx.path] = w_BHLM.detach()
    w_BHLM = F.dropout(w_BHLM, dropout, dropout > 0).to(v_BHMK.dtype)
    return w_BHLM @ v_BHMK if more is None else w_BHLM @ v_BHMK + more(w_BHLM)


def shared(t_BGMK: Tensor, heads: int) -> Tensor:
    """Keys or values of G groups, one for each head: head h has group floor(h G / H)."""
    groups = t_BGMK.shape[1]
    return t_BGMK if groups == heads else t_BGMK.repeat_interleave(heads // groups, 1)
