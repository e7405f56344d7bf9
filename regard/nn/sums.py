"""The weighted sum itself: by PyTorch's kernel, or written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

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
    if bias is not None and dropout == 0.0 and _learns(bias):
        return _learned(q, k, v, scale, allow, bias)
    mask = allow if bias is None else bias if allow is None else bias.masked_fill(~allow, float("-inf"))
    if mask is not None and mask.dtype.is_floating_point:
        mask = mask.to(q.dtype)
    causal, grouped = bool(causal), bool(q.shape[1] != k.shape[1])  # plain bools where a compiler traces
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale, enable_gqa=grouped)


def _learns(bias: Tensor) -> bool:
    """Whether a bias has a gradient that PyTorch's kernel for CPUs would not give."""
    learns = bias.requires_grad and torch.is_grad_enabled() and bias.device.type == "cpu"
    return learns and not torch.compiler.is_compiling()


def _learned(q: Tensor, k: Tensor, v: Tensor, scale: float, allow: Tensor | None, bias: Tensor) -> Tensor:
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    with torch.autocast("cpu", enabled=False):  # scores of half precision would be too coarse
        parts = (t.to(wide) for t in (q, k, v))
        y: Tensor = _Learned.apply(*parts, scale, allow, bias.to(wide))  # type: ignore[no-untyped-call]
    return y.to(v.dtype)


class _Learned(torch.autograd.Function):
    """The same where the bias has a gradient: the way around PyTorch's kernel goes over the scores often.

    Here they are written once, added to and divided where they stand, and the bias has their gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, allow: Tensor | None, bias: Tensor
    ) -> Tensor:
        (B, H, L, K), (G, M) = q.shape, k.shape[1:3]
        w_BHLM = q.new_empty(B, H, L, M)
        if allow is None:
            w_BHLM.copy_(bias)
        else:
            torch.where(allow, bias, bias.new_tensor(float("-inf")), out=w_BHLM)
        q_XLK = (q * scale).reshape(B * G, -1, K)  # heads that share keys stand below each other
        k_XMK, v_XMK = k.reshape(B * G, M, K), v.reshape(B * G, M, -1)
        w_XLM = w_BHLM.view(B * G, -1, M).baddbmm_(q_XLK, k_XMK.mT)
        torch.softmax(w_XLM, -1, out=w_XLM)
        if allow is not None and not bool((seen := allow.any(-1, keepdim=True)).all()):
            w_BHLM.masked_fill_(~seen, 0.0)  # a query that may see nothing reads nothing
        ctx.save_for_backward(q_XLK, k_XMK, v_XMK, w_XLM)
        ctx.scale, ctx.shapes = scale, (q.shape, k.shape, v.shape, bias.shape)
        return torch.bmm(w_XLM, v_XMK).view(B, H, L, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q_XLK, k_XMK, v_XMK, w_XLM = ctx.saved_tensors
        of_q, of_k, of_v, of_bias = ctx.shapes
        dy_XLK = grad.reshape(*q_XLK.shape[:2], -1)
        dv_XMK = torch.bmm(w_XLM.mT, dy_XLK)
        ds_XLM = torch.bmm(dy_XLK, v_XMK.mT)
        ds_XLM = torch._softmax_backward_data(ds_XLM, w_XLM, -1, w_XLM.dtype)
        dq_XLK = torch.bmm(ds_XLM, k_XMK).mul_(ctx.scale)
        dk_XMK = torch.bmm(ds_XLM.mT, q_XLK)
        dbias = ds_XLM.view(*of_q[:3], -1).sum_to_size(of_bias)
        return dq_XLK.view(of_q), dk_XMK.view(of_k), dv_XMK.view(of_v), None, None, dbias


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
