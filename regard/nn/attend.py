"""The only softmax over keys in the library: four ways to the same sum.

    y_i = sum_{j in S_i} softmax_j(score(q_i, k_j) + bias_ij) v_j

fused      PyTorch's kernel; plain causal attention never builds a mask
blockwise  a block of queries meets only the blocks of keys that its pattern names: time and memory grow so,
           forward and backward, on any device
flex       FlexAttention, where a GPU is there
explicit   scores written out; when a tape records, or the score is no dot product
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import UsageError
from regard.nn.blocks import gather
from regard.nn.context import Context, How
from regard.nn.pattern.pattern import Pattern
from regard.nn.position.position import Position
from regard.nn.score.score import Score

BLOCK = 128  # queries that share their keys in the blockwise way


def attend(
    q_BHLK: Tensor,
    k_BGMK: Tensor,
    v_BGMK: Tensor,
    j_BM: Tensor | None,
    ctx: Context,
    *,
    score: Score,
    pattern: Pattern,
    position: Position | None = None,
    raw_BHLK: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    r"""Each query reads the values of the keys it may see, weighted by how well they match.

        y_i = sum_{j in S_i} softmax_j(score(q_i, k_j) + bias_ij) v_j

    Vaswani et al. 2017, eq. 1, https://arxiv.org/abs/1706.03762. Queries stand at `ctx.pos_BL`, keys at
    `j_BM`; keys at a negative position are never seen, and a query that sees nothing reads nothing. Keys that
    stand nowhere (`j_BM` is None: each is made of all tokens) are seen by all. H heads may share G groups of
    keys. `raw_BHLK` are the queries before `position.turn`, from which a bias is made.
    """
    if j_BM is None:
        if ctx.tape is None and ctx.how != "explicit" and score.is_dot:
            return _fused(q_BHLK, k_BGMK, v_BGMK, score, None, None, False, dropout)
        return _explicit(q_BHLK, k_BGMK, v_BGMK, score, None, None, None, dropout, ctx)
    pattern = pattern.bind(ctx)
    bias = position if position is not None and position.biased else None
    value = position if position is not None and position.valued else None
    raw_BHLK = q_BHLK if raw_BHLK is None else raw_BHLK
    how = _choose(q_BHLK, k_BGMK, j_BM, ctx, score.is_dot and value is None, pattern)
    if how == "blockwise":
        return _blockwise(q_BHLK, k_BGMK, v_BGMK, j_BM, ctx, score, pattern, position, raw_BHLK, dropout)
    if how == "flex":
        return _flex(q_BHLK, k_BGMK, v_BGMK, j_BM, ctx, score, pattern, bias, raw_BHLK)
    causal, allow = False, None
    shape = pattern.amounts_to(k_BGMK.shape[2]) if _whole(ctx, j_BM) else None
    if shape == "causal" and how == "fused" and bias is None and q_BHLK.shape[2] == k_BGMK.shape[2]:
        causal = q_BHLK.shape[2] > 1
    elif shape is None or (shape == "causal" and q_BHLK.shape[2] > 1):
        allow = _allow(pattern, ctx, j_BM)
    bias_BHLM = _bias(bias, raw_BHLK, j_BM, ctx)
    if how == "fused":
        return _fused(q_BHLK, k_BGMK, v_BGMK, score, allow, bias_BHLM, causal, dropout)
    more = partial(value.value, i_BL=ctx.pos_BL, j_BM=j_BM) if value is not None else None
    return _explicit(q_BHLK, k_BGMK, v_BGMK, score, allow, bias_BHLM, more, dropout, ctx)


def _choose(
    q_BHLK: Tensor, k_BGMK: Tensor, j_BM: Tensor, ctx: Context, fusible: bool, pattern: Pattern
) -> How:
    """The quickest way that gives what is asked for."""
    if ctx.tape is not None or ctx.how == "explicit":
        return "explicit"
    length = k_BGMK.shape[2]
    own = q_BHLK.shape[2] == length and j_BM is ctx.pos_BL  # keys and queries are the same tokens
    if ctx.how in ("blockwise", "flex"):
        if ctx.how == "blockwise" and not own:
            raise UsageError(
                "The blockwise way needs queries and keys of the same tokens; leave `how` at 'auto'."
            )
        if ctx.how == "flex" and not fusible:
            raise UsageError(
                "FlexAttention needs a dot product as score and plain values; leave `how` at 'auto'."
            )
        return ctx.how
    if ctx.how == "auto" and own and length > 2 * BLOCK:
        count = -(-length // BLOCK)
        blocks = pattern.keys(BLOCK, count)
        if blocks is not None and 2 * blocks.shape[1] <= count:
            return "flex" if q_BHLK.is_cuda and fusible and ctx.plain else "blockwise"
    return "fused" if fusible else "explicit"


def _whole(ctx: Context, j_BM: Tensor) -> bool:
    """Keys stand at 0 .. M - 1 in every row, the queries last: what a pattern amounts to is known."""
    if not ctx.plain or (ctx.cache is not None and not ctx.cache.plain):
        return False
    return j_BM is ctx.pos_BL or (
        ctx.cache is not None and ctx.cache.capacity is None and j_BM is ctx.cache.seen_BM
    )


def _allow(pattern: Pattern, ctx: Context, j_BM: Tensor) -> Tensor:
    """Who may see whom: (B or 1, H or 1, L, M); made once for all layers that ask the same."""

    def make() -> Tensor:
        i, j = ctx.pos_BL[:, None, :, None], j_BM[:, None, None, :]
        return pattern(i, j) & (j >= 0)

    if j_BM is ctx.pos_BL:
        return cast(Tensor, ctx.once(("own", pattern), make))
    if ctx.memory is not None and j_BM is ctx.memory.pos_BM:
        return cast(Tensor, ctx.once(("memory", pattern), make))
    return make()


def _bias(position: Position | None, raw_BHLK: Tensor, j_BM: Tensor, ctx: Context) -> Tensor | None:
    if position is None:
        return None
    if position.shared and j_BM is ctx.pos_BL:
        return cast(
            Tensor, ctx.once(("bias", id(position)), lambda: position.bias(raw_BHLK, ctx.pos_BL, j_BM))
        )
    return position.bias(raw_BHLK, ctx.pos_BL, j_BM)


def _fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score: Score,
    allow: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    dropout: float,
) -> Tensor:
    q, k = score.prepare(q, k)
    mask = allow if bias is None else bias if allow is None else bias.masked_fill(~allow, float("-inf"))
    if mask is not None and mask.dtype.is_floating_point:
        mask = mask.to(q.dtype)
    causal, grouped = bool(causal), bool(q.shape[1] != k.shape[1])  # plain bools where a compiler traces
    return F.scaled_dot_product_attention(
        q, k, v, mask, dropout, causal, scale=score.scale_of(q), enable_gqa=grouped
    )


def _explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score: Score,
    allow: Tensor | None,
    bias: Tensor | None,
    more: Callable[[Tensor], Tensor] | None,
    dropout: float,
    ctx: Context,
) -> Tensor:
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    s_BHLM = score(q, k)
    if bias is not None:
        s_BHLM = s_BHLM + bias
    if allow is not None:
        s_BHLM = s_BHLM.masked_fill(~allow, float("-inf"))
        w_BHLM = s_BHLM.softmax(-1).masked_fill(~allow, 0.0)  # a query that may see nothing reads nothing
    else:
        w_BHLM = s_BHLM.softmax(-1)
    if ctx.tape is not None:
        ctx.tape[ctx.path] = w_BHLM.detach()
    w_BHLM = F.dropout(w_BHLM, dropout, dropout > 0).to(v.dtype)
    return w_BHLM @ v if more is None else w_BHLM @ v + more(w_BHLM)


def _blockwise(
    q_BHLK: Tensor,
    k_BGMK: Tensor,
    v_BGMK: Tensor,
    j_BM: Tensor,
    ctx: Context,
    score: Score,
    pattern: Pattern,
    position: Position | None,
    raw_BHLK: Tensor,
    dropout: float,
) -> Tensor:
    """Sparse attention is dense attention on gathered blocks.

    Column and position must agree, so padding moves last.
    """
    back_BL = None
    if not ctx.plain:
        pos_BL = ctx.pos_BL.expand(len(q_BHLK), -1)
        order_BL = torch.where(pos_BL >= 0, pos_BL, pos_BL.shape[1]).argsort(dim=1, stable=True)
        back_BL = order_BL.argsort(1)
        j_BM = pos_BL.gather(1, order_BL)
        q_BHLK, k_BGMK, v_BGMK, raw_BHLK = (_rows(t, order_BL) for t in (q_BHLK, k_BGMK, v_BGMK, raw_BHLK))
    (B, H, L, _), G = q_BHLK.shape, k_BGMK.shape[1]
    count = -(-L // BLOCK)
    blocks_NS = pattern.keys(BLOCK, count)
    if blocks_NS is None:  # all of them
        blocks_NS = torch.arange(count).expand(count, count)
    short = count * BLOCK - L
    i = F.pad(j_BM.int(), (0, short), value=-1).unflatten(1, (count, BLOCK))  # (B or 1, N, block)
    q, k, v, raw = (_cut(t, count, short) for t in (q_BHLK, k_BGMK, v_BGMK, raw_BHLK))
    k, v = (gather(t, blocks_NS) for t in (k, v))  # (B, G, N, S*block, K)
    j = gather(i[:, None, ..., None], blocks_NS, empty=-1)[:, 0, ..., 0]  # (B or 1, N, S*block)
    if ctx.prefix_B is not None:  # what a row says holds for each of its blocks
        pattern = pattern.bind(ctx.but(prefix_B=ctx.prefix_B.repeat_interleave(count)))
        i, j = i.expand(B, -1, -1), j.expand(B, -1, -1)
    allow = pattern(i.flatten(0, 1)[:, None, :, None], j.flatten(0, 1)[:, None, None, :])
    allow = allow & (j.flatten(0, 1)[:, None, None, :] >= 0)  # (B or 1 * N, H or 1, block, S*block)
    allow = allow.unflatten(0, (-1, count)).transpose(1, 2)  # (B or 1, H or 1, N, block, S*block)
    bias, more = None, None
    if position is not None and (position.biased or position.valued):  # every block is a row of its own
        i_rows, j_rows = (t.expand(B, -1, -1).flatten(0, 1) for t in (i, j))
        if position.biased:
            bias = position.bias(raw.transpose(1, 2).flatten(0, 1), i_rows, j_rows)
            bias = _as_heads(bias.expand(B * count, H, -1, -1), B)
        if position.valued:
            value = position.value
            more = lambda w: _as_heads(value(_as_rows(w, H), i_rows, j_rows), B)  # noqa: E731
    k, v = (
        t.repeat_interleave(H // G, 1).flatten(0, 1) for t in (k, v)
    )  # (B*H, N, S*block, K): blocks as heads
    if allow.shape[:2] == (1, 1):
        allow = allow[0]
    else:
        allow = allow.expand(B, H, -1, -1, -1).flatten(0, 1)
    q = q.flatten(0, 1)
    if score.is_dot and more is None:
        y = _fused(q, k, v, score, allow, bias, False, dropout)
    else:
        y = _explicit(q, k, v, score, allow, bias, more, dropout, ctx.but(tape=None))
    y_BHLK = y.unflatten(0, (B, H)).flatten(2, 3)[:, :, :L]
    return y_BHLK if back_BL is None else _rows(y_BHLK, back_BL)


def _as_heads(t: Tensor, B: int) -> Tensor:
    """Blocks that were rows, (B*N, H, ...), become heads: (B*H, N, ...)."""
    return t.unflatten(0, (B, -1)).transpose(1, 2).flatten(0, 1)  # type: ignore[no-any-return]


def _as_rows(t: Tensor, H: int) -> Tensor:
    """And back: (B*H, N, ...) to (B*N, H, ...)."""
    return t.unflatten(0, (-1, H)).transpose(1, 2).flatten(0, 1)  # type: ignore[no-any-return]


def _cut(t_BHLK: Tensor, count: int, short: int) -> Tensor:
    """Blocks of tokens, the last one filled up: (B, H, N, block, K)."""
    t_BHLK = F.pad(t_BHLK, (0, 0, 0, short)) if short else t_BHLK
    cut: Tensor = t_BHLK.unflatten(2, (count, BLOCK))
    return cut


def _rows(t_BHLK: Tensor, order_BL: Tensor) -> Tensor:
    """Tokens of each row in a new order."""
    index = order_BL[:, None, :, None].expand(-1, t_BHLK.shape[1], -1, t_BHLK.shape[3])
    return t_BHLK.gather(2, index)


def _flex(
    q_BHLK: Tensor,
    k_BGMK: Tensor,
    v_BGMK: Tensor,
    j_BM: Tensor,
    ctx: Context,
    score: Score,
    pattern: Pattern,
    position: Position | None,
    raw_BHLK: Tensor,
) -> Tensor:
    """FlexAttention with the pattern as its mask; a bias is added from the scores' own table."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    (B, H, L, _), M = q_BHLK.shape, k_BGMK.shape[2]
    i_BL, j_BM = ctx.pos_BL.expand(B, L), j_BM.expand(B, M)
    bias = _bias(position, raw_BHLK, j_BM, ctx)

    def mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return pattern.sees(b, h, i_BL[b, i], j_BM[b, j]) & (j_BM[b, j] >= 0)

    def add(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        assert bias is not None
        return s + bias[b % bias.shape[0], h, i, j]

    q, k = score.prepare(q_BHLK, k_BGMK)
    allowed = create_block_mask(mask, B, H if pattern.by_head else None, L, M, device=str(q.device))
    kernel = torch.compile(flex_attention) if q.is_cuda else flex_attention
    change, grouped = add if bias is not None else None, k.shape[1] != H
    y: Tensor = kernel(q, k, v_BGMK, change, allowed, score.scale_of(q), enable_gqa=grouped)
    return y
