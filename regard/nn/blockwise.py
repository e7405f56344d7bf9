"""Attention that costs what its pattern allows: dense attention on tokens brought side by side.

A pattern is cut into pieces in which queries and the keys they see lie together: blocks of queries with the
blocks of keys that they need, and lanes that bring together what lies far apart. Each pair of a query and a
key is in one piece at most. Where a query is in several, their sums are joined exactly:

    y_i = sum_p exp(z_ip - z_i) y_ip,   z_ip = log sum_{j in p} exp(s_ij),   z_i = log sum_p exp(z_ip)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.nn.blocks import gather
from regard.nn.context import Context
from regard.nn.pattern.lanes import Lanes
from regard.nn.pattern.pattern import Pattern, named
from regard.nn.position.position import Position
from regard.nn.score.score import Score
from regard.nn.sums import explicit, fused, shared

NEVER = float("-inf")


@dataclass(frozen=True)
class Piece:
    """Queries and keys side by side in N groups: (B, H, N, Q, X) and (B, G, N, M, X) from tokens (.., L, X).

    lanes   tokens are sorted into these, and only what they show is seen
    apart   what these lanes show is not seen here, because it is in a piece of its own
    blocks  the blocks of keys of each block of queries; None: nothing is cut, a lane is a group
    block   tokens in a block
    rows    blocks of queries that the piece has; None: all
    order   what is seen in a group, where nothing is padded
    """

    lanes: Lanes | None = None
    apart: Lanes | None = None
    blocks: Tensor | None = None
    block: int = 0
    rows: Tensor | None = None
    order: Literal["causal", "full"] | None = None

    def sees(self, pattern: Pattern, i: Tensor, j: Tensor) -> Tensor:
        """Which pairs of the piece count."""
        if self.lanes is not None:
            return self.lanes(i, j)
        return pattern(i, j) if self.apart is None else pattern(i, j) & ~self.apart(i, j)

    def queries(self, t_BHLX: Tensor, fill: float = 0) -> Tensor:
        """Tokens as queries."""
        t = t_BHLX[:, :, None] if self.lanes is None else self.lanes.queries(t_BHLX, fill)
        if self.blocks is None:
            return t
        t = self._cut(t, fill)
        return (t if self.rows is None else t[:, :, :, self.rows]).flatten(2, 3)

    def keys(self, t_BGLX: Tensor, fill: float = 0) -> Tensor:
        """Tokens as keys."""
        t = t_BGLX[:, :, None] if self.lanes is None else self.lanes.keys(t_BGLX, fill)
        if self.blocks is None:
            return t
        found = gather(self._cut(t, fill).flatten(1, 2), self.blocks, fill)  # (B, G*lanes, N, S*block, X)
        return found.unflatten(1, (t.shape[1], -1)).flatten(2, 3)  # type: ignore[no-any-return]

    def back(self, t_BHNQX: Tensor, length: int, fill: float = 0) -> Tensor:
        """Queries in the order of tokens, `fill` where the piece has none: (B, H, L, X)."""
        t, lanes = t_BHNQX, self.lanes
        if self.blocks is not None:
            rows = length if lanes is None else lanes.rows(length)
            t = t.unflatten(2, (1 if lanes is None else lanes.stride, -1))
            if self.rows is not None:
                whole = t.new_full((*t.shape[:3], -(-rows // self.block), *t.shape[4:]), fill)
                t = whole.index_copy(3, self.rows, t)
            t = t.flatten(3, 4)[:, :, :, :rows]
        return t[:, :, 0] if lanes is None else lanes.back(t, length, fill)

    def _cut(self, t_BHSRX: Tensor, fill: float) -> Tensor:
        short = -t_BHSRX.shape[3] % self.block
        t = F.pad(t_BHSRX, (0, 0, 0, short), value=fill) if short else t_BHSRX
        blocks: Tensor = t.unflatten(3, (-1, self.block))
        return blocks


def pieces(pattern: Pattern, length: int, block: int) -> list[Piece]:
    """The pattern of one head, cut up."""
    if (shape := pattern.amounts_to(length)) is not None:
        return [Piece(order=shape)]
    if (parts := pattern.split()) is None:
        return _blocks(pattern, length, block)
    rest, lanes = parts
    rows = lanes.rows(length)
    if (shape := lanes.inner.amounts_to(rows)) is not None:
        found = [Piece(lanes, order=shape)] if rows else []
    else:
        found = _blocks(lanes.inner, rows, block, lanes=lanes)
    return found if rest is None else found + _blocks(rest, length, block, apart=lanes)


def _blocks(
    pattern: Pattern, length: int, block: int, lanes: Lanes | None = None, apart: Lanes | None = None
) -> list[Piece]:
    """Blocks of queries with the blocks of keys they need; those that need many more stand apart."""
    names = pattern.keys(block, -(-length // block))
    if names is None:
        return [Piece(lanes, apart)]
    needs = (names >= 0).sum(1)
    if 2 * int(needs.sum()) >= names.numel():
        return [Piece(lanes, apart, names, block)]
    found, size = [], needs.clamp(min=1).float().log2().ceil()  # 1, 2, up to 4, up to 8, ...
    for one in size.unique():
        rows = (size == one).nonzero()[:, 0]
        own = named(set(row) - {-1} for row in names[rows].tolist())
        found.append(Piece(lanes, apart, own, block, rows))
    return found


def share(pattern: Pattern, length: int, block: int) -> float:
    """Which part of all pairs of queries and keys is looked at, for a pattern of one head."""
    done = 0.0
    for piece in pieces(pattern, length, block):
        lanes, rows = (1, length) if piece.lanes is None else (piece.lanes.stride, piece.lanes.rows(length))
        pairs = rows**2 if piece.blocks is None else int((piece.blocks >= 0).sum()) * block**2
        done += lanes * pairs / length**2
    return done


Plan = tuple[Piece, Tensor | None, bool]  # a piece, who may see whom in it, or that its order is causal


class Look(NamedTuple):
    """One piece, ready to be summed: blocks and lanes stand where heads stood, (B*H, N, Q or M, K)."""

    piece: Piece
    q: Tensor
    k: Tensor
    v: Tensor
    allow: Tensor | None
    bias: Tensor | None
    more: Any
    causal: bool


@torch.compiler.disable  # type: ignore[untyped-decorator]  # it reads tables
def blockwise(
    q_BHLK: Tensor,
    k_BGMK: Tensor,
    v_BGMK: Tensor,
    ctx: Context,
    score: Score,
    pattern: Pattern,
    position: Position | None,
    raw_BHLK: Tensor,
    dropout: float,
    block: int,
) -> Tensor:
    """Sparse attention is dense attention on what is brought together; heads that differ are asked apart."""
    order_BL = None
    if not ctx.plain:  # column and position must agree, so padding moves last
        pos_BL = ctx.pos_BL.expand(len(q_BHLK), -1)
        order_BL = torch.where(pos_BL >= 0, pos_BL, pos_BL.shape[1]).argsort(dim=1, stable=True)
        ctx = ctx.but(pos_BL=pos_BL.gather(1, order_BL))
        q_BHLK, k_BGMK, v_BGMK, raw_BHLK = (_rows(t, order_BL) for t in (q_BHLK, k_BGMK, v_BGMK, raw_BHLK))
    if score.is_dot:
        q_BHLK, k_BGMK = score.prepare(q_BHLK, k_BGMK)
    if pattern.by_head and score.is_dot:
        y_BHLK = _by_head(q_BHLK, k_BGMK, v_BGMK, ctx, score, pattern, position, raw_BHLK, dropout, block)
    else:
        y_BHLK = _one(q_BHLK, k_BGMK, v_BGMK, ctx, score, pattern, position, raw_BHLK, dropout, block)
    if order_BL is None:
        return y_BHLK
    y_BHLK = y_BHLK.masked_fill((ctx.pos_BL < 0)[:, None, :, None], 0.0)
    return _rows(y_BHLK, order_BL.argsort(1))


def _by_head(
    q_BHLK: Tensor,
    k_BGMK: Tensor,
    v_BGMK: Tensor,
    ctx: Context,
    score: Score,
    pattern: Pattern,
    position: Position | None,
    raw_BHLK: Tensor,
    dropout: float,
    block: int,
) -> Tensor:
    """Heads that see alike are asked together, so that each costs what its own pattern allows."""
    H, G = q_BHLK.shape[1], k_BGMK.shape[1]
    alike: dict[Pattern, list[int]] = {}
    for h in range(H):
        alike.setdefault(pattern.head(h), []).append(h)
    order, sizes = [h for heads in alike.values() for h in heads], [len(heads) for heads in alike.values()]
    q, raw = (_picked(t, order).split(sizes, 1) for t in (q_BHLK, raw_BHLK))
    if G == 1:
        k, v = ((t,) * len(sizes) for t in (k_BGMK, v_BGMK))
    else:
        k, v = (_picked(t, [h * G // H for h in order]).split(sizes, 1) for t in (k_BGMK, v_BGMK))
    found = []
    for n, (one, heads) in enumerate(alike.items()):
        place = None if position is None else position.some(heads, H)
        found.append(_one(q[n], k[n], v[n], ctx, score, one, place, raw[n], dropout, block))
    return _picked(torch.cat(found, 1), [order.index(h) for h in range(H)])


def _one(
    q_BHLK: Tensor,
    k_BGMK: Tensor,
    v_BGMK: Tensor,
    ctx: Context,
    score: Score,
    pattern: Pattern,
    position: Position | None,
    raw_BHLK: Tensor,
    dropout: float,
    block: int,
) -> Tensor:
    """All heads by one pattern, or by one that only a mask can tell apart."""
    (B, H, L, _), scale = q_BHLK.shape, score.scale_of(q_BHLK)
    cut = cast(list[Piece], ctx.once(("pieces", pattern, L, block), lambda: pieces(pattern, L, block)))
    looks = [_look(p, q_BHLK, k_BGMK, v_BGMK, ctx, pattern, position, raw_BHLK) for p in cut]
    written = not score.is_dot or any(one.more is not None for one in looks)
    if len(looks) == 1:
        one = looks[0]
        if written:
            s, own = _scores(one, score, scale, H), ctx.but(tape=None)
            s = _back_only(s) if one.causal else s
            y = explicit(s, one.v, one.allow, one.bias, one.more, dropout, own)
        else:
            y = fused(one.q, one.k, one.v, scale, one.allow, one.bias, one.causal, dropout)
        return one.piece.back(y.unflatten(0, (B, H)), L)
    if written or dropout or q_BHLK.device.type != "cpu" or any(one.bias is not None for one in looks):
        return _joined(looks, [_scores(one, score, scale, H) for one in looks], (B, H, L), dropout)
    given = [t for one in looks for t in (one.q, one.k, one.v)]
    plans = [(one.piece, one.allow, one.causal) for one in looks]
    y_BHLK: Tensor = _Joined.apply(plans, scale, (B, H, L), *given)
    return y_BHLK


def _look(
    piece: Piece,
    q_BHLK: Tensor,
    k_BGMK: Tensor,
    v_BGMK: Tensor,
    ctx: Context,
    pattern: Pattern,
    position: Position | None,
    raw_BHLK: Tensor,
) -> Look:
    B, H = q_BHLK.shape[:2]
    pos = ctx.pos_BL.int()[:, None, :, None]
    i, j = piece.queries(pos, -1)[:, 0, ..., 0], piece.keys(pos, -1)[:, 0, ..., 0]  # (B or 1, N, Q or M)
    bias, more = None, None
    if position is not None and (position.biased or position.valued):  # every group is a row of its own
        i_rows, j_rows = (t.expand(B, -1, -1).flatten(0, 1) for t in (i, j))
        if position.biased:
            bias = position.bias(piece.queries(raw_BHLK).transpose(1, 2).flatten(0, 1), i_rows, j_rows)
            bias = _as_heads(bias.expand(len(i_rows), H, -1, -1), B)
        if position.valued:
            value = position.value
            more = lambda w: _as_heads(value(_as_rows(w, H), i_rows, j_rows), B)  # noqa: E731
    causal = piece.order == "causal" and bias is None and more is None
    allow = None  # padding comes last, where a causal order does not look
    if not causal and not (piece.order == "full" and ctx.plain):
        key = ("seen", pattern, piece.block, *(id(t) for t in (piece.lanes, piece.blocks)))
        allow = cast(Tensor, ctx.once(key, lambda: _allow(piece, pattern, ctx, i, j, B)))
        allow = allow[0] if allow.shape[:2] == (1, 1) else allow.expand(B, H, -1, -1, -1).flatten(0, 1)
    q, k, v = piece.queries(q_BHLK), piece.keys(shared(k_BGMK, H)), piece.keys(shared(v_BGMK, H))
    return Look(piece, q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), allow, bias, more, causal)


def _allow(piece: Piece, pattern: Pattern, ctx: Context, i: Tensor, j: Tensor, B: int) -> Tensor:
    """Who may see whom: (B or 1, H or 1, N, Q, M)."""
    count = i.shape[1]
    if ctx.prefix_B is not None:  # what a row says holds for each of its groups
        pattern = pattern.bind(ctx.but(prefix_B=ctx.prefix_B.repeat_interleave(count)))
        i, j = i.expand(B, -1, -1), j.expand(B, -1, -1)
    i, j = i.flatten(0, 1)[:, None, :, None], j.flatten(0, 1)[:, None, None, :]
    allow = piece.sees(pattern, i, j) & (j >= 0)
    return allow.unflatten(0, (-1, count)).transpose(1, 2)  # type: ignore[no-any-return]


def _scores(one: Look, score: Score, scale: float, H: int) -> Tensor:
    if score.is_dot:
        return one.q @ one.k.mT * scale
    return _as_heads(score(_as_rows(one.q, H), _as_rows(one.k, H)), len(one.q) // H)


def _back_only(s: Tensor) -> Tensor:
    """Scores of what a causal order shows, where no mask says it."""
    return s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1), NEVER)


def _joined(looks: list[Look], scores: list[Tensor], shape: tuple[int, int, int], dropout: float) -> Tensor:
    """The sums of all pieces as one, written out."""
    B, H, L = shape
    most = scores[0].new_full((B, H, L, 1), NEVER)
    for n, one in enumerate(looks):
        s = scores[n] if one.bias is None else scores[n] + one.bias
        if one.causal:
            s = _back_only(s)
        scores[n] = s if one.allow is None else s.masked_fill(~one.allow, NEVER)
        top = scores[n].detach().amax(-1, keepdim=True).unflatten(0, (B, H))
        most = torch.maximum(most, one.piece.back(top, L, NEVER))
    most = most.masked_fill(most == NEVER, 0.0)
    total, y = torch.zeros_like(most), looks[0].v.new_zeros(())
    for s, one in zip(scores, looks, strict=True):
        w = (s - one.piece.queries(most).flatten(0, 1)).exp()
        total = total + one.piece.back(w.sum(-1, keepdim=True).unflatten(0, (B, H)), L)
        w = F.dropout(w, dropout, dropout > 0).to(one.v.dtype)
        read = w @ one.v if one.more is None else w @ one.v + one.more(w)
        y = y + one.piece.back(read.unflatten(0, (B, H)), L)
    return (y / total.clamp(min=torch.finfo(total.dtype).tiny)).to(looks[0].v.dtype)


class _Joined(torch.autograd.Function):
    """The sums of all pieces as one, by PyTorch's kernel, which also gives z_ip; weights are never stored.

    Backward, the kernel makes weights anew from scores and z_i: with that of all pieces, they are the weights
    of the whole.
    """

    @staticmethod
    def forward(
        ctx: Any, plans: list[Plan], scale: float, shape: tuple[int, int, int], *given: Tensor
    ) -> Tensor:
        (B, H, L), sums = shape, []
        z_BHL1 = given[0].new_full((B, H, L, 1), NEVER, dtype=_wide(given[0]))
        for n, (piece, allow, causal) in enumerate(plans):
            q, k, v = given[3 * n : 3 * n + 3]
            y, z = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q, k, v, 0.0, causal, attn_mask=_added(allow, q), scale=scale
            )
            if allow is not None:
                z = z.masked_fill(~allow.any(-1), NEVER)  # the kernel says 0 where nothing is seen
            y, z = y.unflatten(0, (B, H)), z.unflatten(0, (B, H))[..., None]
            y, z = piece.back(y, L), piece.back(z, L, NEVER)
            sums.append((y, z))
            z_BHL1 = torch.logaddexp(z_BHL1, z)
        z_BHL1 = z_BHL1.masked_fill(z_BHL1 == NEVER, 0.0)
        y_BHLK = sum(y * (z - z_BHL1).exp().to(y.dtype) for y, z in sums)
        ctx.plans, ctx.scale = plans, scale
        ctx.save_for_backward(y_BHLK, z_BHL1, *given)
        return cast(Tensor, y_BHLK)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y_BHLK, z_BHL1, *given = ctx.saved_tensors
        found: list[Tensor | None] = [None, None, None]
        for n, (piece, allow, causal) in enumerate(ctx.plans):
            q, k, v = given[3 * n : 3 * n + 3]
            dy, y, z = (piece.queries(t).flatten(0, 1) for t in (grad, y_BHLK, z_BHL1))
            found += torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                dy, q, k, v, y, z[..., 0], 0.0, causal, attn_mask=_added(allow, q), scale=ctx.scale
            )
        return tuple(found)


def _wide(t: Tensor) -> torch.dtype:
    return torch.float64 if t.dtype == torch.float64 else torch.float32


def _added(allow: Tensor | None, q: Tensor) -> Tensor | None:
    """A mask as the kernel wants it: minus infinity where nothing is seen."""
    if allow is None:
        return None
    mask = torch.zeros(allow.shape, dtype=q.dtype, device=q.device).masked_fill_(~allow, NEVER)
    return mask if mask.ndim == 4 else mask[None]


def _as_heads(t: Tensor, B: int) -> Tensor:
    """Groups that were rows, (B*N, H, ...), become heads: (B*H, N, ...)."""
    return t.unflatten(0, (B, -1)).transpose(1, 2).flatten(0, 1)  # type: ignore[no-any-return]


def _as_rows(t: Tensor, H: int) -> Tensor:
    """And back: (B*H, N, ...) to (B*N, H, ...)."""
    return t.unflatten(0, (-1, H)).transpose(1, 2).flatten(0, 1)  # type: ignore[no-any-return]


def _picked(t_BHLK: Tensor, heads: list[int]) -> Tensor:
    return t_BHLK if heads == list(range(t_BHLK.shape[1])) else t_BHLK[:, heads]


def _rows(t_BHLK: Tensor, order_BL: Tensor) -> Tensor:
    """Tokens of each row in a new order."""
    index = order_BL[:, None, :, None].expand(-1, t_BHLK.shape[1], -1, t_BHLK.shape[3])
    return t_BHLK.gather(2, index)
