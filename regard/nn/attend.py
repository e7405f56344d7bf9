"""The softmax over keys: four ways to the same sum.

    y_i = sum_{j in S_i} softmax_j(score(q_i, k_j) + bias_ij) v_j

fused      PyTorch's kernel; plain causal attention never builds a mask
blockwise  a block of queries meets only the blocks of keys that its pattern names: time and memory grow so,
           forward and backward, on any device
flex       FlexAttention, where a GPU is there
explicit   scores written out; when a tape records, or the score is no dot product

All attention comes here; only where each head sorts its tokens anew (LSH) is there a kernel of its own for
long sequences, regard/nn/rounds.py, which is tested to give what this one gives.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import TypeVar, cast

import torch
from torch import Tensor

from regard.errors import UsageError
from regard.native import attend_few, can_attend
from regard.nn.blockwise import blockwise, share
from regard.nn.context import Context, How
from regard.nn.pattern.pattern import Pattern
from regard.nn.position.position import Position
from regard.nn.score.score import Score
from regard.nn.sums import explicit, for_few, fused, is_few, mask_of, shared
from regard.nn.uncompiled import uncompiled

BLOCK = 128  # queries that share their keys in the blockwise way
T = TypeVar("T")


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
    keys, and several rows of queries one row of keys, as beams do. `raw_BHLK` are the queries before
    `position.turn`, from which a bias is made.
    """
    if (sources := k_BGMK.shape[0]) < (rows := q_BHLK.shape[0]):  # they ask together, as queries of one row
        y_BHLK = attend(
            _asked(q_BHLK, sources),
            k_BGMK,
            v_BGMK,
            j_BM,
            ctx.but(pos_BL=ctx.once(("asked", sources), lambda: _positions(ctx, rows, sources)), plain=False),
            score=score,
            pattern=pattern,
            position=position,
            raw_BHLK=None if raw_BHLK is None or raw_BHLK is q_BHLK else _asked(raw_BHLK, sources),
            dropout=dropout,
        )
        return cast(Tensor, y_BHLK.unflatten(2, (rows // sources, -1)).transpose(1, 2).flatten(0, 1))
    if j_BM is None:
        if ctx.tape is None and ctx.how != "explicit" and score.is_dot:
            return _fused(q_BHLK, k_BGMK, v_BGMK, score, None, None, False, dropout)
        return _explicit(q_BHLK, k_BGMK, v_BGMK, score, None, None, None, dropout, ctx)
    pattern = pattern.bind(ctx)
    position = None if position is None else position.under(pattern)
    bias = position if position is not None and position.biased else None
    value = position if position is not None and position.valued else None
    raw_BHLK = q_BHLK if raw_BHLK is None else raw_BHLK
    how = _choose(q_BHLK, k_BGMK, j_BM, ctx, score.is_dot and value is None, pattern)
    if how == "blockwise":
        apart = ctx, score, pattern, position, raw_BHLK, dropout, BLOCK
        return blockwise(q_BHLK, k_BGMK, v_BGMK, *apart)
    if how == "flex":
        return _flex(q_BHLK, k_BGMK, v_BGMK, j_BM, ctx, score, pattern, bias, raw_BHLK)
    causal, allow = False, None
    shape = pattern.amounts_to(k_BGMK.shape[2]) if _whole(ctx, j_BM) else None
    if shape == "causal" and how == "fused" and bias is None and q_BHLK.shape[2] == k_BGMK.shape[2]:
        causal = q_BHLK.shape[2] > 1
    elif shape is None and (few := _few(pattern, ctx, j_BM)) is not None and how == "fused":
        k_BGMK, v_BGMK, j_BM = k_BGMK[:, :, few], v_BGMK[:, :, few], j_BM[:, few]
    elif shape is None or (shape == "causal" and q_BHLK.shape[2] > 1):
        allow = _allow(pattern, ctx, j_BM)
    bias_BHLM = _bias(bias, raw_BHLK, j_BM, ctx)
    if how == "fused" and bias is None and not causal and not dropout and is_few(q_BHLK, k_BGMK, v_BGMK):
        q, k = score.prepare(q_BHLK, k_BGMK)
        if can_attend(q, k, v_BGMK):
            return attend_few(q, k, v_BGMK, score.scale_of(q), allow)
        mask = _once(ctx, j_BM, ("few", pattern, q.shape, k.shape), lambda: mask_of(q, k, allow))
        return for_few(q, k, v_BGMK, score.scale_of(q), mask)
    if how == "fused":
        return _fused(q_BHLK, k_BGMK, v_BGMK, score, allow, bias_BHLM, causal, dropout)
    more = partial(value.value, i_BL=ctx.pos_BL, j_BM=j_BM) if value is not None else None
    return _explicit(q_BHLK, k_BGMK, v_BGMK, score, allow, bias_BHLM, more, dropout, ctx)


def _positions(ctx: Context, rows: int, sources: int) -> Tensor:
    return ctx.pos_BL.expand(rows, -1).reshape(sources, -1)


def _asked(q_NHLK: Tensor, sources: int) -> Tensor:
    return cast(Tensor, q_NHLK.unflatten(0, (sources, -1)).transpose(1, 2).flatten(2, 3))


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
    sparse = own and length > 2 * BLOCK and pattern.amounts_to(length) is None
    if ctx.how == "auto" and sparse and _pays(pattern, length, q_BHLK.shape[1], ctx):
        return "flex" if q_BHLK.is_cuda and fusible and ctx.plain else "blockwise"
    return "fused" if fusible else "explicit"


@uncompiled  # it reads tables
def _pays(pattern: Pattern, length: int, heads: int, ctx: Context) -> bool:
    """Whether so little is seen that bringing it together pays. A mask for each head costs much by itself."""

    def find() -> bool:
        each = [share(pattern.head(h), length, BLOCK) for h in range(heads if pattern.by_head else 1)]
        return sum(each) / len(each) <= (0.8 if pattern.by_head else 0.5)

    return bool(ctx.once(("pays", pattern, length, heads), find))


def _whole(ctx: Context, j_BM: Tensor) -> bool:
    """Keys stand at 0 .. M - 1 in every row, the queries last: what a pattern amounts to is known."""
    cache = ctx.cache
    if not ctx.plain or (cache is not None and (not cache.plain or cache.own_BNM is not None)):
        return False
    return j_BM is ctx.pos_BL or (cache is not None and cache.capacity is None and j_BM is cache.seen_BM)


def _allow(pattern: Pattern, ctx: Context, j_BM: Tensor) -> Tensor:
    """Who may see whom: (B or 1, H or 1, L, M)."""
    own_BNM = None
    if ctx.cache is not None and j_BM is ctx.cache.seen_BM:
        own_BNM = ctx.cache.own_BNM  # of beams, each sees the columns it descends from

    def make() -> Tensor:
        i, j = ctx.pos_BL[:, None, :, None], j_BM[:, None, None, :]
        allow = pattern(i, j) & (j >= 0)
        if own_BNM is None:
            return allow
        tokens = ctx.pos_BL.shape[1] // own_BNM.shape[1]
        return allow & own_BNM[:, None].repeat_interleave(tokens, 2)

    return _once(ctx, j_BM, pattern, make)


def _once(ctx: Context, j_BM: Tensor, key: Hashable, make: Callable[[], T]) -> T:
    """What is made of the places of keys: once for all layers that look at the same."""
    if j_BM is ctx.pos_BL:
        return cast(T, ctx.once(("own", key), make))
    if ctx.memory is not None and j_BM is ctx.memory.pos_BM:
        return cast(T, ctx.once(("memory", key), make))
    if ctx.cache is not None and j_BM is ctx.cache.seen_BM:
        return cast(T, ctx.once(("past", key), make))
    return make()


def _few(pattern: Pattern, ctx: Context, j_BM: Tensor) -> Tensor | None:
    """For one token after a long text: the columns it sees, where these are few."""
    if ctx.pos_BL.shape[1] > 1 or j_BM.shape[1] <= 2 * BLOCK or torch.compiler.is_compiling():
        return None
    if pattern.by_head or pattern.prefixed or not _whole(ctx, j_BM):
        return None

    def find() -> Tensor | None:
        seen = pattern(ctx.pos_BL[0, 0], j_BM[0]).nonzero()[:, 0]
        return seen if 4 * len(seen) <= j_BM.shape[1] else None

    return cast(Tensor | None, ctx.once(("few", pattern), find))


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
    return fused(q, k, v, score.scale_of(q), allow, bias, causal, dropout)


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
    k, v = shared(k, q.shape[1]), shared(v, q.shape[1])
    return explicit(score(q, k), v, allow, bias, more, dropout, ctx)


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
