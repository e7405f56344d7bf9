"""Attention in rounds: tokens are sorted, cut into chunks, and a chunk sees itself and its neighbour.

What LSH attention needs besides `attend`: a softmax over keys that are met in several rounds, without ever
writing all weights down. Time and memory grow with rounds x length x chunk, forward and backward. Every head
of every sequence is sorted by itself: a row, N in all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

SELF = -1e5  # the score of a token with itself: finite, so that a token that meets nobody reads itself
NOBODY = -(2**30)  # the code of padding: far from all others
PAIRS = 2**20  # how many pairs of query and key are in memory at a time


@dataclass(frozen=True)
class Rounds:
    r"""Who meets whom in which round.

    Query i meets key j in round r if j lies in its chunk or in a neighbour of it,

        low <= code_i^r - code_j^r <= high,      and pos_j < pos_i (pos_j != pos_i if `both`)

    rank_RNL  the place of each token when all are sorted, padding last
    code_RNL  chosen so that the condition says who may meet; NOBODY at padding
    chunk     tokens in a chunk: it sees itself and the one before it; if `after`, the one after it too
    circle    before the first chunk comes the last one of the round before
    repeat    who is met in several rounds counts as often; else once
    """

    rank_RNL: Tensor
    code_RNL: Tensor
    pos_NL: Tensor
    chunk: int
    low: int = 0
    high: int = 1
    both: bool = False
    after: bool = False
    circle: bool = False
    repeat: bool = False

    def met(self) -> Tensor:
        """How often i meets j, every pair written out: (N, L, L)."""
        N, L = self.pos_NL.shape
        count_NLM = torch.zeros(N, L, L, dtype=torch.uint8, device=self.pos_NL.device)
        for code_NL in self.code_RNL:
            i, j = code_NL[:, :, None], code_NL[:, None, :]
            count_NLM += (j <= i - self.low) & (j >= i - self.high)
        if self.circle:
            chunk_RNL = self.rank_RNL // self.chunk
            last_RNM = (chunk_RNL == self.last_N[:, None]).roll(1, 0) & (self.pos_NL >= 0)
            for first_NL, last_NM in zip(chunk_RNL == 0, last_RNM, strict=True):
                count_NLM += first_NL[:, :, None] & last_NM[:, None, :]
        i, j = self.pos_NL[:, :, None], self.pos_NL[:, None, :]
        count_NLM *= (i != j) if self.both else (j < i)
        return count_NLM if self.repeat else count_NLM.clamp_(max=1)

    @property
    def last_N(self) -> Tensor:
        """The number of each row's last chunk that holds a token."""
        return ((self.pos_NL >= 0).sum(1) - 1).clamp(min=0) // self.chunk

    def filled(self) -> Rounds:
        """With padding at the end, so that all chunks are full."""
        R, N, L = self.rank_RNL.shape
        chunk = min(self.chunk, L)
        more = torch.arange(L, L + -L % chunk, device=self.rank_RNL.device).expand(R, N, -1)
        pos_NL = F.pad(self.pos_NL.int(), (0, -L % chunk), value=-1)  # short integers: many are compared
        code_RNL = F.pad(self.code_RNL.int(), (0, -L % chunk), value=NOBODY)
        rank_RNL = torch.cat([self.rank_RNL, more], -1)
        return replace(self, rank_RNL=rank_RNL, code_RNL=code_RNL, pos_NL=pos_NL, chunk=chunk)

    def pieces(self) -> Iterator[tuple[slice, Rounds]]:
        """A few rows at a time, so that what is written down stays small."""
        N, L = self.pos_NL.shape
        step = max(1, PAIRS // (2 * L * self.chunk))
        for some in (slice(first, first + step) for first in range(0, N, step)):
            rank_RNL, code_RNL = self.rank_RNL[:, some], self.code_RNL[:, some]
            yield some, replace(self, rank_RNL=rank_RNL, code_RNL=code_RNL, pos_NL=self.pos_NL[some])


def in_rounds(q_NLK: Tensor, k_NLK: Tensor, v_NLK: Tensor, rounds: Rounds) -> Tensor:
    r"""Each query reads the values of all keys it meets in any round, weighted by q . k.

        o_i = sum_r exp(z_i^r - z_i) o_i^r,   z_i^r = log sum_{j in P_i^r} exp(q_i . k_j - log N_ij)

    Kitaev et al. 2020, eq. 4 to 6, https://arxiv.org/abs/2001.04451. N_ij, the number of rounds in which i
    meets j, makes a pair that meets twice count once. Here such a pair counts in its first round and in no
    other, which is the same sum.
    """
    L, rounds = q_NLK.shape[1], rounds.filled()
    if short := rounds.pos_NL.shape[1] - L:
        q_NLK, k_NLK, v_NLK = (F.pad(t, (0, 0, 0, short)) for t in (q_NLK, k_NLK, v_NLK))
    y_NLK: Tensor = _InRounds.apply(q_NLK, k_NLK, v_NLK, rounds)
    return y_NLK[:, :L]


class _InRounds(torch.autograd.Function):
    r"""Inputs, outputs and one number for each query are kept; weights are made anew, round by round.

    A round's part of the gradient follows from the whole sum: p = exp(s - z), ds = p (do . v - do . o), with
    z and o those of all rounds together.
    """

    @staticmethod
    def forward(ctx: Any, q_NLK: Tensor, k_NLK: Tensor, v_NLK: Tensor, rounds: Rounds) -> Tensor:
        wide = torch.promote_types(q_NLK.dtype, torch.float32)
        o_NLK, z_NL1 = torch.empty_like(v_NLK), q_NLK.new_empty(*q_NLK.shape[:2], 1, dtype=wide)
        for some, few in rounds.pieces():
            q, k, v = q_NLK[some], k_NLK[some], v_NLK[some]
            o = z = q_NLK  # of the rounds so far
            for r in range(len(few.rank_RNL)):
                sort = _Sort(few, r)
                s = sort.scores(sort.out(q), sort.near(k), wide)
                top = s.amax(-1, keepdim=True).clamp_(min=torch.finfo(wide).min)
                p = s.sub_(top).exp_()
                total = p.sum(-1, keepdim=True)
                o_r = sort.back((p.to(v.dtype) @ sort.near(v)).div_(total.clamp(min=1).to(v.dtype)))
                z_r = sort.back(total.log_().add_(top))
                o = o_r if r == 0 else o.lerp_(o_r, (z_r - z).sigmoid_().to(o.dtype))
                z = z_r if r == 0 else torch.logaddexp(z, z_r)
            o_NLK[some], z_NL1[some] = o, z
        ctx.save_for_backward(q_NLK, k_NLK, v_NLK, o_NLK, z_NL1)
        ctx.rounds = rounds
        return o_NLK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do_NLK: Tensor) -> tuple[Tensor | None, ...]:
        q_NLK, k_NLK, v_NLK, o_NLK, z_NL1 = ctx.saved_tensors
        dq_NLK, dk_NLK, dv_NLK = (torch.zeros_like(t) for t in (q_NLK, k_NLK, v_NLK))
        for some, few in ctx.rounds.pieces():
            q, k, v, do, z = (t[some] for t in (q_NLK, k_NLK, v_NLK, do_NLK, z_NL1))
            d = (do * o_NLK[some]).sum(-1, keepdim=True, dtype=z.dtype)
            for r in range(len(few.rank_RNL)):
                sort = _Sort(few, r)
                q_r, k_r, do_r = sort.out(q), sort.near(k), sort.out(do)
                p = sort.scores(q_r, k_r, z.dtype).sub_(sort.out(z)).exp_()
                sort.add_near(dv_NLK[some], p.to(v.dtype).mT @ do_r)
                ds = (do_r @ sort.near(v).mT).to(z.dtype).sub_(sort.out(d)).mul_(p).to(q.dtype)
                dq_NLK[some] += sort.back(ds @ k_r)
                sort.add_near(dk_NLK[some], ds.mT @ q_r)
        return dq_NLK, dk_NLK, dv_NLK, None


class _Sort:
    """One round: tokens there and back again, and who is hidden from whom. C chunks of T tokens."""

    def __init__(self, rounds: Rounds, r: int) -> None:
        self.rounds, self.r, self.chunk = rounds, r, rounds.chunk
        self.order_S, self.rank_S = self._orders(r)
        self.wrap_S = self._wrap() if rounds.circle else None

    def _orders(self, r: int) -> tuple[Tensor, Tensor]:
        """Of all rows as one long list: the tokens as they are sorted, and the way back."""
        rank_NL = self.rounds.rank_RNL[r]
        first_N1 = torch.arange(0, rank_NL.numel(), rank_NL.shape[1], device=rank_NL.device)[:, None]
        rank_S = (rank_NL + first_N1).flatten()
        order_S = torch.empty_like(rank_S)
        order_S[rank_S] = torch.arange(len(rank_S), device=rank_S.device)
        return order_S, rank_S

    def _wrap(self) -> Tensor:
        """The tokens before the first chunk: each row's last chunk of the round before."""
        before_S, _ = self._orders((self.r - 1) % len(self.rounds.rank_RNL))
        before_NCT = before_S.view(len(self.rounds.pos_NL), -1, self.chunk)
        last_N = self.rounds.last_N
        return before_NCT[torch.arange(len(last_N), device=last_N.device), last_N].flatten()

    def out(self, t_NLX: Tensor) -> Tensor:
        """Sorted and cut: (N, C, T, X)."""
        t_SX = t_NLX.flatten(0, 1).index_select(0, self.order_S)
        return t_SX.view(len(t_NLX), -1, self.chunk, t_SX.shape[-1])

    def back(self, t_NCTX: Tensor) -> Tensor:
        """As they were: (N, L, X)."""
        t_SX = t_NCTX.flatten(0, 2).index_select(0, self.rank_S)
        return t_SX.view(len(t_NCTX), -1, t_SX.shape[-1])

    def near(self, t_NLX: Tensor, empty: int = 0) -> Tensor:
        """For each chunk, the one before it, itself, and the one after it if that is asked for."""
        own, T = self.out(t_NLX), self.chunk
        N, C, _, X = own.shape
        near = own.new_empty(N, C, (2 + self.rounds.after) * T, X)
        near[:, 1:, :T], near[:, :, T : 2 * T] = own[:, :-1], own
        if self.wrap_S is None:
            near[:, 0, :T] = empty
        else:
            near[:, 0, :T] = t_NLX.flatten(0, 1).index_select(0, self.wrap_S).view(N, T, X)
        if self.rounds.after:
            near[:, :-1, 2 * T :], near[:, -1, 2 * T :] = own[:, 1:], empty
        return near

    def add_near(self, into_NLX: Tensor, grad: Tensor) -> None:
        """The gradient of `near`."""
        T = self.chunk
        own = grad[:, :, T : 2 * T].contiguous()
        own[:, :-1] += grad[:, 1:, :T]
        if self.rounds.after:
            own[:, 1:] += grad[:, :-1, 2 * T :]
        into_NLX += self.back(own)
        if self.wrap_S is not None:
            into_NLX.flatten(0, 1).index_add_(0, self.wrap_S, grad[:, 0, :T].flatten(0, 1))

    def scores(self, q_NCTK: Tensor, k_NCMK: Tensor, dtype: torch.dtype) -> Tensor:
        """q . k, and -inf where they do not meet in this round: (N, C, T, M)."""
        s = (q_NCTK @ k_NCMK.mT).to(dtype)
        s.masked_fill_(self._hidden(), float("-inf"))
        if self.r == 0:
            s.narrow(-1, self.chunk, self.chunk).diagonal(dim1=-2, dim2=-1).fill_(SELF)
        return s

    def _hidden(self) -> Tensor:
        low, high = self.rounds.low, self.rounds.high
        i, j = self._pair(self.rounds.pos_NL, -1)
        hidden = (i == j) if self.rounds.both else (j >= i)
        i, j = self._pair(self.rounds.code_RNL[self.r], NOBODY)
        if self.wrap_S is not None:  # in the chunk before the first, all but padding is met
            first = j[:, 0, :, : self.chunk]
            first.masked_fill_(first != NOBODY, 0)
        hidden |= j > i - low
        hidden |= j < i - high
        if not self.rounds.repeat:
            for earlier_NL in self.rounds.code_RNL[: self.r]:
                i, j = self._pair(earlier_NL, NOBODY)
                hidden |= (j <= i - low) & (j >= i - high)
        return hidden

    def _pair(self, t_NL: Tensor, empty: int) -> tuple[Tensor, Tensor]:
        """Of queries and keys, ready to be compared: (N, C, T, 1) and (N, C, 1, M)."""
        return self.out(t_NL[..., None]), self.near(t_NL[..., None], empty).mT
