"""Attention that costs what its pattern allows: dense attention on tokens brought side by side.

A pattern is cut into pieces in which queries and the keys they see lie together: blocks of queries with the
blocks of keys that they need, and lanes that bring together what lies far apart. Each pair of a query and a
key is in one piece at most. Where a query is in several, their sums are joined exactly:

    y_i = sum_p exp(z_ip - z_i) y_ip,   z_ip = log sum_{j in p} exp(s_ij),   z_i = log sum_p exp(z_ip)
"""

from __future__ import annotations

from collections.abc import Iterator
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
from regard.nn.sums import fused, shared
from regard.nn.uncompiled import uncompiled

NEVER = float("-inf")
LEAST = 32  # tokens in a block
SMALL = 2**24  # bytes: what is freed below this is used again, larger memory must be asked for each time


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


def fitting(pattern: Pattern, block: int, whole: bool) -> int:
    """Tokens of a block: what a short reach brings together in large ones is mostly not seen.

    Small ones cost more calls, which counts where the kernel does the whole; scores that are written out cost
    by their number.
    """
    if pattern.reach is None or block <= LEAST:
        return block
    part = pattern.reach // (2 if whole else 8)
    return int(max(LEAST, min(block, 2 ** (part.bit_length() - 1)))) if part else LEAST


def share(pattern: Pattern, length: int, block: int) -> float:
    """Which part of all pairs of queries and keys is looked at, for a pattern of one head."""
    done = 0.0
    for piece in pieces(pattern, length, block):
        lanes, rows = (1, length) if piece.lanes is None else (piece.lanes.stride, piece.lanes.rows(length))
        pairs = rows**2 if piece.blocks is None else int((piece.blocks >= 0).sum()) * block**2
        done += lanes * pairs / length**2
    return done


class Look(NamedTuple):
    """How a piece is looked at: who may see whom, (B or 1, H or 1, N, Q, M), or that its order is causal."""

    piece: Piece
    allow: Tensor | None
    causal: bool
    bias: Tensor | None = None
    more: Any = None

    def sides(self, q_BHLK: Tensor, k_BGMK: Tensor, v_BGMK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values; groups of tokens stand where heads stood: (B*H, N, Q or M, K)."""
        k, v = (shared(self.piece.keys(t), q_BHLK.shape[1]) for t in (k_BGMK, v_BGMK))
        return self.piece.queries(q_BHLK).flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)

    def mask(self, B: int, heads: slice) -> Tensor | None:
        """Who may see whom, for these heads: (B*H or 1, N, Q, M)."""
        if self.allow is None or self.allow.shape[:2] == (1, 1):
            return None if self.allow is None else self.allow[0]
        count = heads.stop - heads.start
        some = self.allow if self.allow.shape[1] == 1 else self.allow[:, heads]
        return some.expand(B, count, -1, -1, -1).flatten(0, 1)


@uncompiled  # it reads tables
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
    whole = score.is_dot and (position is None or not (position.biased or position.valued))
    block = fitting(pattern, block, whole)
    cut = cast(list[Piece], ctx.once(("pieces", pattern, L, block), lambda: pieces(pattern, L, block)))
    looks = [_look(p, H, B, ctx, pattern, position, raw_BHLK) for p in cut]
    written = not score.is_dot or any(one.more is not None for one in looks)
    biased = any(one.bias is not None for one in looks)
    plain = not (written or biased or dropout) and q_BHLK.shape[-1] == v_BGMK.shape[-1]
    if plain and q_BHLK.device.type == "cpu":
        y_BHLK: Tensor = _Summed.apply(looks, scale, q_BHLK, k_BGMK, v_BGMK)
        return y_BHLK
    sides = [one.sides(q_BHLK, k_BGMK, v_BGMK) for one in looks]
    masks = [one.mask(B, slice(0, H)) for one in looks]
    if len(looks) == 1 and not written:
        y = fused(*sides[0], scale, masks[0], looks[0].bias, looks[0].causal, dropout)
        return looks[0].piece.back(y.unflatten(0, (B, H)), L)
    scores = [_scores(q, k, score, scale, H) for q, k, _ in sides]
    return _joined(looks, scores, masks, [v for _, _, v in sides], (B, H, L), dropout)


def _look(
    piece: Piece,
    H: int,
    B: int,
    ctx: Context,
    pattern: Pattern,
    position: Position | None,
    raw_BHLK: Tensor,
) -> Look:
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
    if causal or (piece.order == "full" and ctx.plain):
        return Look(piece, None, causal, bias, more)  # padding comes last, where a causal order does not look
    key = ("seen", pattern, piece.block, *(id(t) for t in (piece.lanes, piece.blocks)))
    allow = cast(Tensor, ctx.once(key, lambda: _allow(piece, pattern, ctx, i, j, B)))
    return Look(piece, allow, False, bias, more)


def _allow(piece: Piece, pattern: Pattern, ctx: Context, i: Tensor, j: Tensor, B: int) -> Tensor:
    """Who may see whom: (B or 1, H or 1, N, Q, M)."""
    count = i.shape[1]
    if ctx.prefix_B is not None:  # what a row says holds for each of its groups
        pattern = pattern.bind(ctx.but(prefix_B=ctx.prefix_B.repeat_interleave(count)))
        i, j = i.expand(B, -1, -1), j.expand(B, -1, -1)
    i, j = i.flatten(0, 1)[:, None, :, None], j.flatten(0, 1)[:, None, None, :]
    allow = piece.sees(pattern, i, j) & (j >= 0)
    return allow.unflatten(0, (-1, count)).transpose(1, 2)  # type: ignore[no-any-return]


def _scores(q: Tensor, k: Tensor, score: Score, scale: float, H: int) -> Tensor:
    if score.is_dot:
        return q @ k.mT * scale
    return _as_heads(score(_as_rows(q, H), _as_rows(k, H)), len(q) // H)


def _joined(
    looks: list[Look],
    scores: list[Tensor],
    masks: list[Tensor | None],
    values: list[Tensor],
    shape: tuple[int, int, int],
    dropout: float,
) -> Tensor:
    """The sums of all pieces as one, written out."""
    B, H, L = shape
    most = scores[0].new_full((B, H, L, 1), NEVER)
    for n, (one, allow) in enumerate(zip(looks, masks, strict=True)):
        s = scores[n] if one.bias is None else scores[n] + one.bias
        if one.causal:
            allow = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).tril()
        scores[n] = s if allow is None else s.masked_fill(~allow, NEVER)
        top = scores[n].detach().amax(-1, keepdim=True).unflatten(0, (B, H))
        most = torch.maximum(most, one.piece.back(top, L, NEVER))
    most = most.masked_fill(most == NEVER, 0.0)
    total, y = torch.zeros_like(most), values[0].new_zeros(())
    for one, s, v in zip(looks, scores, values, strict=True):
        w = (s - one.piece.queries(most).flatten(0, 1)).exp()
        total = total + one.piece.back(w.sum(-1, keepdim=True).unflatten(0, (B, H)), L)
        w = F.dropout(w, dropout, dropout > 0).to(v.dtype)
        read = w @ v if one.more is None else w @ v + one.more(w)
        y = y + one.piece.back(read.unflatten(0, (B, H)), L)
    return (y / total.clamp(min=torch.finfo(total.dtype).tiny)).to(values[0].dtype)


class _Summed(torch.autograd.Function):
    """The sums of all pieces as one, by PyTorch's kernel, which also gives z_ip; a few heads at a time.

    Neither weights nor what was brought together is kept. Backward, tokens are brought together again, and
    the kernel makes weights anew from scores and z_i: with the z_i of all pieces, those of the whole.
    """

    @staticmethod
    def forward(ctx: Any, looks: list[Look], scale: float, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        y_BHLK, z_BHL1 = torch.empty_like(q), q.new_empty(*q.shape[:3], 1, dtype=wide)
        for heads, groups, masks in _shares(looks, q, k):
            parts = q[:, heads], k[:, groups], v[:, groups]
            y_BHLK[:, heads], z_BHL1[:, heads] = _sum(looks, masks, scale, *parts)
        ctx.looks, ctx.scale = looks, scale
        ctx.save_for_backward(q, k, v, y_BHLK, z_BHL1)
        return y_BHLK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, y_BHLK, z_BHL1 = ctx.saved_tensors
        dq, dk, dv = (torch.empty_like(t) for t in (q, k, v))
        for heads, groups, masks in _shares(ctx.looks, q, k):
            with torch.enable_grad():
                parts = [t.detach().requires_grad_() for t in (q[:, heads], k[:, groups], v[:, groups])]
                sides = [one.sides(*parts) for one in ctx.looks]
            slopes: list[Tensor] = []
            for one, mask, side in zip(ctx.looks, masks, sides, strict=True):
                dy, y, z = (one.piece.queries(t[:, heads]).flatten(0, 1) for t in (grad, y_BHLK, z_BHL1))
                slopes += torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                    dy,
                    *(t.detach() for t in side),
                    y,
                    z[..., 0],
                    0.0,
                    one.causal,
                    attn_mask=mask,
                    scale=ctx.scale,
                )
            found = torch.autograd.grad([t for side in sides for t in side], parts, slopes)
            dq[:, heads], dk[:, groups], dv[:, groups] = found
        return None, None, dq, dk, dv


def _sum(
    looks: list[Look], masks: list[Tensor | None], scale: float, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """What is read, and the logarithm of what it was divided by."""
    shape, L, found = q.shape[:2], q.shape[2], []
    for one, mask in zip(looks, masks, strict=True):
        y, z = kernel(*one.sides(q, k, v), mask, one.causal, scale)
        if mask is not None:  # the kernel says 0 where nothing is seen
            z = z.masked_fill(mask.amax(-1) == NEVER, NEVER)
        y, z = y.unflatten(0, shape), z.unflatten(0, shape)[..., None]
        found.append((one.piece.back(y, L), one.piece.back(z, L, NEVER)))
    if len(found) == 1:
        y, z = found[0]
        return y, z.masked_fill(z == NEVER, 0.0)
    z_BHL1 = torch.logsumexp(torch.stack([z for _, z in found]), 0)
    z_BHL1 = z_BHL1.masked_fill(z_BHL1 == NEVER, 0.0)
    return sum(y * (z - z_BHL1).exp().to(y.dtype) for y, z in found), z_BHL1  # type: ignore[return-value]


def _shares(
    looks: list[Look], q_BHLK: Tensor, k_BGMK: Tensor
) -> Iterator[tuple[slice, slice, list[Tensor | None]]]:
    """Heads and their groups of keys, so few at a time that what is brought together stays small."""
    (B, H, L, K), G = q_BHLK.shape, k_BGMK.shape[1]
    step = max(1, SMALL // (B * L * K * q_BHLK.element_size() * 3 * H // G))
    masks = [_added(one.mask(B, slice(0, H)), q_BHLK) if _alike(one) else None for one in looks]
    for first in range(0, G, step):
        groups = slice(first, min(G, first + step))
        heads = slice(groups.start * H // G, groups.stop * H // G)
        mine = [
            m if _alike(one) else _added(one.mask(B, heads), q_BHLK)
            for one, m in zip(looks, masks, strict=True)
        ]
        yield heads, groups, mine


def _alike(one: Look) -> bool:
    """Whether all rows and heads have one mask, or none."""
    return one.allow is None or one.allow.shape[:2] == (1, 1)


def kernel(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """y and z of dense attention."""
    look = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return cast(tuple[Tensor, Tensor], look(q, k, v, 0.0, causal, attn_mask=mask, scale=scale))


def _added(allow: Tensor | None, q: Tensor) -> Tensor | None:
    """A mask as the kernel wants it: minus infinity where nothing is seen."""
    if allow is None:
        return None
    return torch.zeros(allow.shape, dtype=q.dtype, device=q.device).masked_fill_(~allow, NEVER)


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
