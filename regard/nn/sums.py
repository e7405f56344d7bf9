"""The weighted sum itself: by PyTorch's kernel, or written out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.nn.context import Context

SHORT = 512  # keys up to which scores are kept while something is learned
FEW = 2**25  # scores that are kept at most
BLOCK = 128  # queries of a causal order that meet the same keys


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
    if dropout == 0.0 and _is_short(q, k, v, bias):
        return _short(q, k, v, scale, allow, bias, causal)
    mask = allow if bias is None else bias if allow is None else bias.masked_fill(~allow, float("-inf"))
    if mask is not None and mask.dtype.is_floating_point:
        mask = mask.to(q.dtype)
    causal, grouped = bool(causal), bool(q.shape[1] != k.shape[1])  # plain bools where a compiler traces
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale, enable_gqa=grouped)


def _is_short(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> bool:
    """Whether something is learned on a CPU from so few scores that they can be kept, or from a bias.

    PyTorch's kernel is made for long sequences: on short ones it is slow, in bfloat16 above all, and where a
    bias has a gradient it gives way to one that goes over the scores many times.
    """
    if q.device.type != "cpu" or torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    if bias is not None and bias.requires_grad:
        return True
    scores = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    return k.shape[2] <= SHORT and scores <= FEW and any(t.requires_grad for t in (q, k, v))


def _short(
    q: Tensor, k: Tensor, v: Tensor, scale: float, allow: Tensor | None, bias: Tensor | None, causal: bool
) -> Tensor:
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    with torch.autocast("cpu", enabled=False):  # scores of half precision would be too coarse
        q_BHLK, k_BGMK, v_BGMK = (t.to(wide) for t in (q, k, v))
        bias = None if bias is None else bias.to(wide)
        y: Tensor = Short.apply(q_BHLK, k_BGMK, v_BGMK, scale, allow, bias, causal)
    return y.to(v.dtype)


class Short(torch.autograd.Function):
    """The same for short sequences: scores are written once, divided where they stand, and kept.

    A block of queries of a causal order meets only the keys up to its end. The bias has the gradient of the
    scores.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        allow: Tensor | None,
        bias: Tensor | None,
        causal: bool,
    ) -> Tensor:
        (B, H, L, K), (G, M) = q.shape, k.shape[1:3]
        q_XRLK = q.reshape(B * G, -1, L, K)  # the heads that share keys stand below each other
        k_XMK, v_XMK = k.reshape(B * G, M, K), v.reshape(B * G, M, -1)
        y_XRLK = q.new_empty(*q_XRLK.shape[:3], v_XMK.shape[-1])
        added_XLM, blocks, kept = _added(q, k, allow, bias), list(_blocks(L, M, causal)), []
        for start, end, seen in blocks:
            q_XLK = q_XRLK[:, :, start:end].reshape(B * G, -1, K)
            s_XLM = _triangle(end - start, seen, q).repeat(q_XRLK.shape[1], 1)[None] if causal else added_XLM
            if s_XLM is None:
                w_XLM = torch.bmm(q_XLK * scale, k_XMK.mT)
            else:
                w_XLM = torch.baddbmm(s_XLM, q_XLK, k_XMK[:, :seen].mT, alpha=scale)
            torch.softmax(w_XLM, -1, out=w_XLM)
            if allow is not None and not bool((sees := allow.any(-1, keepdim=True)).all()):
                w_XLM.view(B, H, L, M).masked_fill_(~sees, 0.0)  # a query that sees nothing reads nothing
            y_XLK = torch.bmm(w_XLM, v_XMK[:, :seen])
            y_XRLK[:, :, start:end] = y_XLK.view(B * G, -1, end - start, y_XLK.shape[-1])
            kept.append(w_XLM)
        ctx.save_for_backward(q_XRLK, k_XMK, v_XMK, *kept)
        ctx.scale, ctx.blocks, ctx.shapes = scale, blocks, (q.shape, k.shape, v.shape)
        ctx.bias = None if bias is None else bias.shape
        return y_XRLK.view(B, H, L, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q_XRLK, k_XMK, v_XMK, *kept = ctx.saved_tensors
        X, K = len(q_XRLK), q_XRLK.shape[-1]
        dy_XRLK = grad.reshape(*q_XRLK.shape[:3], -1)
        dq_XRLK, dk_XMK, dv_XMK = torch.empty_like(q_XRLK), torch.zeros_like(k_XMK), torch.zeros_like(v_XMK)
        for (start, end, seen), w_XLM in zip(ctx.blocks, kept, strict=True):
            q_XLK, dy_XLK = (t[:, :, start:end].reshape(X, -1, t.shape[-1]) for t in (q_XRLK, dy_XRLK))
            dv_XMK[:, :seen].baddbmm_(w_XLM.mT, dy_XLK)
            ds_XLM = torch.bmm(dy_XLK, v_XMK[:, :seen].mT)
            ds_XLM = torch._softmax_backward_data(ds_XLM, w_XLM, -1, w_XLM.dtype)
            dq_XLK = torch.bmm(ds_XLM, k_XMK[:, :seen])
            dq_XRLK[:, :, start:end] = dq_XLK.view(X, -1, end - start, K)
            dk_XMK[:, :seen].baddbmm_(ds_XLM.mT, q_XLK, alpha=ctx.scale)
        of_q, of_k, of_v = ctx.shapes
        dbias = None if ctx.bias is None else ds_XLM.view(*of_q[:3], -1).sum_to_size(ctx.bias)
        dq_XRLK *= ctx.scale
        return dq_XRLK.view(of_q), dk_XMK.view(of_k), dv_XMK.view(of_v), None, None, dbias, None


def _blocks(L: int, M: int, causal: bool) -> Iterator[tuple[int, int, int]]:
    """Blocks of queries, from where to where, and how many keys each may need."""
    if not causal:
        yield 0, L, M
    else:
        for start in range(0, L, BLOCK):
            end = min(L, start + BLOCK)
            yield start, end, end


def _triangle(rows: int, columns: int, like: Tensor) -> Tensor:
    """Minus infinity where a key comes after its query, both last; else 0."""
    return like.new_full((rows, columns), float("-inf")).triu_(columns - rows + 1)


def _added(q: Tensor, k: Tensor, allow: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """What scores begin with, (X or 1, L or 1, M): the bias, and minus infinity where nothing may be seen."""
    (B, H, L, _), (G, M) = q.shape, k.shape[1:3]
    if allow is None:
        return None if bias is None else bias.expand(B, H, L, M).reshape(B * G, -1, M)
    never = q.new_tensor(float("-inf"))
    if bias is not None:
        return torch.where(allow, bias, never).expand(B, H, L, M).reshape(B * G, -1, M)
    s = torch.where(allow, q.new_zeros(()), never)
    if s.shape[1] > 1 or s.shape[2] > 1:
        return s.expand(B, H, L, M).reshape(B * G, -1, M)
    return s.expand(B, G, 1, M).reshape(B * G, 1, M)


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
