"""Each head learns how far back it looks."""

from __future__ import annotations

import math
from copy import copy
from functools import partial

import torch
from torch import Tensor, nn

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.context import Context
from regard.nn.pattern import Pattern, PerHead, Window
from regard.nn.position.distance import blank, spread
from regard.nn.position.position import Position
from regard.nn.product import Linear
from regard.spec import part

NEVER = 1e-30  # in place of 0 under a logarithm


@part
class AdaptiveSpan(Position):
    r"""Weights fade out over a ramp of R keys, z positions back; every head learns its z, and pays for it.

        w_ij ~ m_z(i - j) exp(q_i . (k_j + p_{i-j}) / sqrt(K)),   m_z(x) = clip((R + z - x) / R, 0, 1)
        z = S val,  0 <= val <= 1;   dynamic: z_i = S sigmoid(v . x_i + b);   loss += penalty mean_heads(z)

    Sukhbaatar et al. 2019, section 2.2, https://arxiv.org/abs/1905.07799. The vectors p serve all layers and
    heads, as in the authors' code; z is the layer's. m_z is added to the scores as its logarithm. Behind z +
    R a weight is 0, so those keys are never looked at: blockwise, each head costs what it sees (a dynamic
    span is known only when it is too late for that). Keys ahead of their query are not touched.

    Differs from the authors' code: there, val is clamped to [0, 1] after each step of the optimizer; here,
    when it is next read in training, which is the same to every later step. Their nearest key, the one before
    the query (`window` without `itself`), counts as x = 0, ours as 1.

    Options:
      ramp: R
      longest: S, the most that z can be; dims.length if not given
      penalty: what a position of span costs
      start: val at birth; from 0, a span grows only while its ramp finds something
      relative: the vectors p
      dynamic: z is made from each token; b is born at -4, so that spans start short
    """

    biased = True
    layered = True

    def __init__(
        self,
        dims: Dims,
        ramp: int = 32,
        longest: int | None = None,
        penalty: float = 2e-6,
        start: float = 0.0,
        relative: bool = True,
        dynamic: bool = False,
    ) -> None:
        super().__init__()
        self.longest = dims.length if longest is None else longest
        if ramp < 1 or self.longest < 1 or not 0 <= start <= 1:
            raise UsageError(
                "A span needs a ramp and a longest of at least 1 and a start in [0, 1], "
                f"but they are {ramp}, {self.longest} and {start}."
            )
        self.dims, self.ramp, self.penalty, self.dynamic = dims, ramp, penalty, dynamic
        self.some_heads: list[int] | slice = slice(None)
        self.span = nn.Parameter(torch.full((dims.layers * dims.heads,), -4.0 if dynamic else start))
        self.keys = nn.Embedding(self.longest, dims.size) if relative else None
        self.look = nn.ModuleList(
            Linear(dims.width, dims.heads, bias=False) for _ in range(dims.layers if dynamic else 0)
        )

    @property
    def spans(self) -> Tensor:
        """z of each layer and head: (N, H)."""
        if self.training and torch.is_grad_enabled():
            with torch.no_grad():
                self.span.clamp_(0, 1)  # a clamp in the graph would let nothing come back from outside
        val: Tensor = self.span if torch.is_grad_enabled() and self.training else self.span.clamp(0, 1)
        return val.unflatten(0, (-1, self.dims.heads)) * self.longest  # type: ignore[no-any-return]

    def ask(self, q_BHLK: Tensor, x_BLD: Tensor) -> Tensor:
        """A dynamic span travels with its query, as one feature more."""
        if not self.dynamic:
            return q_BHLK
        b_H = self.span.unflatten(0, (-1, self.dims.heads))[self.layer]
        z_BLH = self.longest * (self.look[self.layer](x_BLD) + b_H).sigmoid()
        return torch.cat([q_BHLK, z_BLH.mT[..., None].to(q_BHLK.dtype)], -1)

    def bias(self, q_BHLK: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        """log m_z(i - j) + q_i . p_{i-j} / sqrt(K)."""
        return spread(partial(self._meet, q_BHLK), i_BL, j_BM, True)

    def _meet(self, q_BHLK: Tensor, most: int, count: int) -> Tensor:
        x_R = torch.arange(most, most - count, -1, device=q_BHLK.device)
        if self.dynamic:
            q_BHLK, z = q_BHLK[..., :-1], q_BHLK[..., -1:]
        else:
            z = self.spans[self.layer, self.some_heads][None, :, None, None]
        m = ((self.ramp + z - x_R) / self.ramp).clamp(0, 1)
        s_BHLR = m.clamp(min=NEVER).log().to(q_BHLK.dtype).expand(-1, -1, q_BHLK.shape[2], -1)
        if self.keys is not None:
            p_RK = self.keys.weight[x_R.clamp(0, self.longest - 1)]
            s_BHLR = s_BHLR + q_BHLK @ p_RK.mT * q_BHLK.shape[-1] ** -0.5
        return s_BHLR

    def narrow(self, pattern: Pattern) -> Pattern:
        """For each head, the window behind which its weights are 0."""
        if self.dynamic or not pattern.causal or blank(self.span):
            return pattern
        widths = [math.ceil(z) + self.ramp for z in self.spans[self.layer].tolist()]
        return pattern & PerHead.join([Window(self.dims, width=w) for w in widths])

    def some(self, heads: list[int], of: int) -> Position:
        """Those heads, with their spans."""
        here = copy(self)
        here.some_heads = heads
        return here

    def charge(self, ctx: Context, raw_BHLK: Tensor) -> None:
        """penalty times the mean span, of all heads and, where it is dynamic, of all tokens."""
        z = self.spans[self.layer]
        if self.dynamic:
            z = raw_BHLK[..., -1].movedim(1, 2)[(ctx.pos_BL >= 0).expand(len(raw_BHLK), -1)]
        ctx.losses[ctx.at("span").path] = self.penalty * z.mean()  # type: ignore[index]
