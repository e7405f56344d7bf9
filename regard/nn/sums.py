"""The weighted sum itself: by PyTorch's kernel, or written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.nn.context import Context

SHORT = 512  # keys up to which scores are written out
FEW = 2**23  # scores that a layer keeps at most while it learns, 32 MiB
BLOCK = 128  # queries that meet the same keys
PAYS = 0.2  # share of the scores that blocks must spare: they cost some copies
ASKING = 16  # queries of a row that are few: the kernel is made for more
ROWS = 64  # rows, each head counted, that are many
LANES = 16  # keys that a processor weighs at once; fewer it weighs one by one


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
    if dropout == 0.0 and _is_short(q, k, v, allow, bias):
        return _short(q, k, v, scale, allow, bias, causal)
    if dropout == 0.0 and allow is None and bias is None and _is_one(q, k):
        return torch.softmax(scale * q @ k.mT, -1) @ v
    mask = allow if bias is None else bias if allow is None else bias.masked_fill(~allow, float("-inf"))
    if mask is not None and mask.dtype.is_floating_point:
        mask = mask.to(q.dtype)
    causal, grouped = bool(causal), bool(q.shape[1] != k.shape[1])  # plain bools where a compiler traces
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale, enable_gqa=grouped)


def _is_short(q: Tensor, k: Tensor, v: Tensor, allow: Tensor | None, bias: Tensor | None) -> bool:
    """Whether something is learned on a CPU from a bias, or from few scores.

    There PyTorch's kernel is slow: it is made for long sequences, and where a bias has a gradient it gives
    way to another that goes over the scores many times.
    """
    if q.device.type != "cpu" or not torch.is_grad_enabled():
        return False
    if torch.compiler.is_compiling() and (allow is not None or bias is not None):
        return False  # a graph cannot look whether someone sees nothing
    if bias is not None and bias.requires_grad:
        return True
    few = k.shape[2] <= SHORT and q.shape[:3].numel() * k.shape[2] <= FEW
    return few and any(t.requires_grad for t in (q, k, v))


def _short(
    q: Tensor, k: Tensor, v: Tensor, scale: float, allow: Tensor | None, bias: Tensor | None, causal: bool
) -> Tensor:
    with torch.autocast("cpu", enabled=False):  # scores of half precision would be too coarse
        y: Tensor = Short.apply(q, k, v, scale, allow, bias, causal)
    return y


def _is_one(q: Tensor, k: Tensor) -> bool:
    """Whether one query is asked in a compiled step on a CPU: the compiler makes one call of what follows.

    Not in half precision, where scores would be too coarse.
    """
    one = q.shape[0] == q.shape[2] == 1 and q.shape[1] == k.shape[1]
    return one and torch.compiler.is_compiling() and q.device.type == "cpu" and q.dtype == torch.float32


def is_few(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether many rows on a CPU ask little each, as beams do: calls of the kernel cost more than they do."""
    if q.device.type != "cpu" or torch.compiler.is_compiling() or torch.is_grad_enabled():
        return False
    (B, H, L, _), M = q.shape, k.shape[2]
    exact = q.dtype == k.dtype == v.dtype and q.dtype in (torch.float32, torch.float64)
    return exact and L <= ASKING and M <= SHORT and B * H >= ROWS


def for_few(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: tuple[Tensor, Tensor | None]) -> Tensor:
    """The same with scores written out: one call for all rows, for each of the two products."""
    (B, H, L, K), (G, M), (added_XLM, blind_XL1) = q.shape, k.shape[1:3], mask
    q_XLK, k_XMK, v_XMK = q.reshape(B * G, -1, K), k.reshape(B * G, M, K), v.reshape(B * G, M, -1)
    w_XLM = torch.baddbmm(added_XLM, q_XLK, k_XMK.mT, alpha=scale)
    if M < LANES:
        w_XLM = F.pad(w_XLM, (0, LANES - M), value=float("-inf"))
    torch.softmax(w_XLM, -1, out=w_XLM)
    if blind_XL1 is not None:
        w_XLM.masked_fill_(blind_XL1, 0.0)
    return torch.bmm(w_XLM[..., :M], v_XMK).view(B, H, L, -1)


def mask_of(q: Tensor, k: Tensor, allow: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """What the scores of a few begin with; and who sees nothing and so reads nothing, if there is someone."""
    (B, H, L, _), (G, M) = q.shape, k.shape[1:3]
    added_XLM = _added(q, (B, H, G, L, M), allow, None)
    if allow is None or added_XLM is None:
        return q.new_zeros(()), None
    sees = allow.any(-1, keepdim=True)
    return added_XLM, None if bool(sees.all()) else (~sees).expand(B, H, L, 1).reshape(B * G, -1, 1)


class Short(torch.autograd.Function):
    """The same for short sequences: scores are written once, divided where they stand, and kept.

    A block of queries meets only the keys up to the last one that any of them sees, if all rows and heads see
    alike. The bias has the gradient of the scores. Scores, and the slopes of weights, are computed in
    float32, or in float64 if that is given; what is summed by them is taken in the precision in which the
    values came.
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
        # the heads that share keys stand below each other: X rows of R heads
        q_XRLK, k_XMK = _widened(q).view(B * G, H // G, L, K), _widened(k).view(B * G, M, K)
        v_XMK = v.contiguous().view(B * G, M, -1)
        blocks, kept, found = _blocks(L, M, causal, allow), [], []
        for start, end, seen in blocks:
            q_XLK, sizes = q_XRLK[:, :, start:end].reshape(B * G, -1, K), (B, H, G, end - start, seen)
            some, more = _part(allow, start, end, seen), _part(bias, start, end, seen)
            s_XLM = (
                _triangle(end - start, seen, H // G, q_XLK) if causal else _added(q_XLK, sizes, some, more)
            )
            if s_XLM is None:
                w_XLM = torch.baddbmm(q_XLK[:, :1, :1], q_XLK, k_XMK.mT, beta=0.0, alpha=scale)
            elif bias is not None:  # a copy already, as large as the scores
                w_XLM = s_XLM.baddbmm_(q_XLK, k_XMK[:, :seen].mT, alpha=scale)
            else:
                w_XLM = torch.baddbmm(s_XLM, q_XLK, k_XMK[:, :seen].mT, alpha=scale)
            torch.softmax(w_XLM, -1, out=w_XLM)
            if some is not None and not bool((sees := some.any(-1, keepdim=True)).all()):
                w_XLM.view(B, H, -1, seen).masked_fill_(~sees, 0.0)  # a query that sees nothing reads nothing
            y_XLK = torch.bmm(w_XLM.to(v.dtype), v_XMK[:, :seen])
            found.append(y_XLK.view(B * G, H // G, end - start, -1))
            kept.append(w_XLM)
        like_k = k.contiguous().view(B * G, M, K) if k.dtype == v.dtype else k_XMK.to(v.dtype)
        ctx.save_for_backward(q_XRLK.to(v.dtype), like_k, v_XMK, *kept)
        ctx.scale, ctx.blocks = scale, blocks
        ctx.bias = (bias.shape, bias.dtype) if bias is not None and ctx.needs_input_grad[5] else None
        ctx.like = [(t.shape, t.dtype) for t in (q, k, v)]
        return _joined(found).view(B, H, L, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q_XRLK, k_XMK, v_XMK, *kept = ctx.saved_tensors
        (X, R, L, K), M, dtype = q_XRLK.shape, k_XMK.shape[1], v_XMK.dtype
        dy_XRLK = grad.to(dtype).contiguous().view(X, R, L, -1)
        found: list[Tensor] = []
        wide_XMK = wide(v_XMK)
        dbias_XRLM: Tensor | None = None
        for (start, end, seen), w_XLM in zip(reversed(ctx.blocks), reversed(kept), strict=True):
            q_XLK, dy_XLK = (t[:, :, start:end].reshape(X, -1, t.shape[-1]) for t in (q_XRLK, dy_XRLK))
            ds_XLM = torch.bmm(wide(dy_XLK), wide_XMK[:, :seen].mT)
            torch._softmax_backward_data(ds_XLM, w_XLM, -1, w_XLM.dtype, grad_input=ds_XLM)
            exact_XLM, ds_XLM = ds_XLM, ds_XLM.to(dtype)
            if ctx.bias is not None:
                whole = ctx.bias == (torch.Size((*ctx.like[0][0][:3], M)), dtype)  # nothing is to be summed
                some_XRLM = (ds_XLM if whole else exact_XLM).view(X, R, end - start, seen)
                if len(kept) == 1:
                    dbias_XRLM = some_XRLM
                else:
                    dbias_XRLM = some_XRLM.new_zeros(X, R, L, M) if dbias_XRLM is None else dbias_XRLM
                    dbias_XRLM[:, :, start:end, :seen] = some_XRLM
            dk, dv = torch.bmm(ds_XLM.mT, q_XLK), torch.bmm(w_XLM.to(dtype).mT, dy_XLK)
            if not found:  # the last block, which sees all keys
                dk_XMK, dv_XMK = (dk, dv) if len(kept) == 1 else (wide(dk), wide(dv))
            else:
                dk_XMK[:, :seen] += dk
                dv_XMK[:, :seen] += dv
            found.append(torch.bmm(ds_XLM, k_XMK[:, :seen]).view(X, R, end - start, K))
        slopes = _joined(found[::-1]).mul_(ctx.scale), dk_XMK.mul_(ctx.scale), dv_XMK
        dq, dk, dv = (t.view(shape).to(like) for t, (shape, like) in zip(slopes, ctx.like, strict=True))
        dbias = None
        if dbias_XRLM is not None:
            dbias = dbias_XRLM.view(*ctx.like[0][0][:3], M).sum_to_size(ctx.bias[0]).to(ctx.bias[1])
        return dq, dk, dv, None, None, dbias, None


def _part(t: Tensor | None, start: int, end: int, seen: int) -> Tensor | None:
    """What a mask or a bias says of these queries and the first keys."""
    if t is None:
        return None
    return (t[:, :, start:end] if t.shape[2] > 1 else t)[..., :seen]


def _widened(t: Tensor) -> Tensor:
    """A copy in float32, or float64, whose numbers stand in order."""
    wide = torch.float64 if t.dtype == torch.float64 else torch.float32
    return torch.empty_like(t, dtype=wide, memory_format=torch.contiguous_format).copy_(t)


def wide(t: Tensor) -> Tensor:
    """In float32, or float64 if it is."""
    return t if t.dtype == torch.float64 else t.float()


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def _blocks(L: int, M: int, causal: bool, allow: Tensor | None) -> list[tuple[int, int, int]]:
    """Blocks of queries, from where to where, and how many keys each may need; the last one meets all."""
    cuts = [(start, min(L, start + BLOCK)) for start in range(0, max(L, 1), BLOCK)]
    if causal:
        return [(start, end, end) for start, end in cuts]
    if allow is None or allow.shape != (1, 1, L, M) or len(cuts) < 2 or torch.compiler.is_compiling():
        return [(0, L, M)]
    blocks = []
    for start, end in cuts:
        column = allow[0, 0, start:end].any(0).nonzero()
        blocks.append((start, end, int(column[-1]) + 1 if len(column) and end < L else M))
    spared = 1 - sum((end - start) * seen for start, end, seen in blocks) / (L * M)
    return blocks if spared >= PAYS else [(0, L, M)]


def _triangle(rows: int, columns: int, heads: int, like: Tensor) -> Tensor:
    """Minus infinity where a key comes after its query, both last; else 0. Once for each head: (1, L, M)."""
    one_LM = like.new_full((rows, columns), float("-inf")).triu_(columns - rows + 1)
    return (one_LM if heads == 1 else one_LM.repeat(heads, 1))[None]


def _added(
    like: Tensor, sizes: tuple[int, int, int, int, int], allow: Tensor | None, bias: Tensor | None
) -> Tensor | None:
    """What scores begin with, (X, L or 1, M): the bias, and minus infinity where nothing may be seen."""
    B, H, G, L, M = sizes
    if bias is not None:
        s = like.new_empty(B, H, L, M).copy_(bias)
        if allow is not None:
            first = _all_see(allow)
            s[..., first:].masked_fill_(~allow[..., first:], float("-inf"))
        return s.view(B * G, -1, M)
    if allow is None:
        return None
    s = torch.where(allow, like.new_zeros(()), float("-inf"))
    if s.shape[1] > 1 or s.shape[2] > 1:
        return s.expand(B, H, L, M).reshape(B * G, -1, M)
    return s.expand(B, G, 1, M).reshape(B * G, 1, M)


def _all_see(allow: Tensor) -> int:
    """How many keys, from the first, are seen by all, as those in a memory are."""
    if allow.shape[0] > 1 or torch.compiler.is_compiling():
        return 0
    hidden = (~allow.flatten(0, -2).all(0)).nonzero()
    return int(hidden[0]) if len(hidden) else allow.shape[-1]


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
