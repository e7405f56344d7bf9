"""Multi-head attention: the mixer most systems share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.attend import attend
from regard.nn.compress import Compress
from regard.nn.context import Context
from regard.nn.mixer.mixer import Mixer
from regard.nn.pattern import Full, Pattern
from regard.nn.position import Position
from regard.nn.product import Linear
from regard.nn.recent import joined
from regard.nn.score import Dot, Score
from regard.spec import Recipe, of, part


@part
class Attention(Mixer):
    r"""Every token asks, every token it may see answers, in several heads at once.

        head_h = attend(x W_h^Q, y W_h^K, y W_h^V),   out = [head_1; ...; head_H] W^O

    with y = x, or the encoder's memory.

    Vaswani et al. 2017, section 3.2.2, https://arxiv.org/abs/1706.03762. With groups < heads, query head h
    shares the keys and values of group floor(h G / H): GQA (Ainslie et al. 2023,
    https://arxiv.org/abs/2305.13245), MQA at 1 (Shazeer 2019, https://arxiv.org/abs/1911.02150). Projections
    that share their input are one matrix, in the order q, k, v. What came before this call is in the cache:
    keys and values, or, while a model is trained over segments, this layer's earlier inputs, from which keys
    and values are made anew (see `regard.nn.recent.Recent`, Transformer-XL).

    Options:
      score: how a query is compared with a key
      pattern: which keys a query may see
      position: this layer's own scheme, in place of the one that the stack shares
      compress: keys and values are made fewer before they are looked at
      groups: how many sets of keys and values; as many as heads if not given
      cross: keys and values come from the encoder's memory
      bias: on the projections
      dropout: on the attention weights
    """

    def __init__(
        self,
        dims: Dims,
        score: Recipe[Score] = of(Dot),
        pattern: Recipe[Pattern] = of(Full),
        position: Recipe[Position] | None = None,
        compress: Recipe[Compress] | None = None,
        groups: int | None = None,
        cross: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads, self.groups, self.size = dims.heads, groups or dims.heads, dims.size
        if self.heads % self.groups:
            raise UsageError(
                f"groups must divide heads, but {self.heads} heads do not split into {self.groups} groups."
            )
        if cross and position is not None:
            raise UsageError(
                "Cross-attention looks at another sequence, so it takes no position; leave it out."
            )
        if cross and compress is not None:
            raise UsageError(
                "Cross-attention keeps the memory as it is; give `compress` to a self-attention."
            )
        asks, answers = self.heads * self.size, 2 * self.groups * self.size
        if cross:
            self.q, self.kv = (
                Linear(dims.width, asks, bias=bias),
                Linear(dims.width, answers, bias=bias),
            )
        else:
            self.qkv = Linear(dims.width, asks + answers, bias=bias)
        self.out = Linear(asks, dims.width, bias=bias)
        self.score, self.pattern = score.build(dims), pattern.build(dims)
        self.position = position.build(dims.but(layers=1)) if position else None  # its own: one layer's
        self.compress = compress.build(dims.but(heads=self.groups, head=self.size)) if compress else None
        if self.compress is not None:
            self.compress.check(self.pattern)
            if self.position is not None:
                self.compress.meet(self.position)
        self.cross, self.dropout = cross, dropout

    def forward(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        """Ask, look, answer."""
        q_BHLK, k_BGMK, v_BGMK, j_BM, position, raw_BHLK = (self._read if self.cross else self._mix)(
            x_BLD, ctx
        )
        y_BHLK = attend(
            q_BHLK,
            k_BGMK,
            v_BGMK,
            j_BM,
            ctx,
            score=self.score,
            pattern=self.pattern if position is None else position.narrow(self.pattern),
            position=position,
            raw_BHLK=raw_BHLK,
            dropout=self.dropout if self.training else 0.0,
        )
        y_BLD: Tensor = self.out(y_BHLK.transpose(1, 2).reshape(*x_BLD.shape[:2], -1))
        return y_BLD

    def _mix(
        self, x_BLD: Tensor, ctx: Context
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Position | None, Tensor]:
        """Keys and values of the stream itself, and of what came before it."""
        position = self.position or ctx.position
        parts = self.heads, self.groups, self.groups
        raw_BHLK, k_BGMK, v_BGMK = self._split(self.qkv(x_BLD)).split(parts, 1)
        q_BHLK, j_BM = raw_BHLK, ctx.pos_BL
        if position is not None:
            q_BHLK, k_BGMK = position.turn(raw_BHLK, k_BGMK, ctx.pos_BL)
            raw_BHLK = position.ask(raw_BHLK, x_BLD)
            if ctx.losses is not None:
                position.charge(ctx, raw_BHLK)
        if self.compress is not None:
            if ctx.cache is not None and ctx.cache.states:
                raise UsageError(
                    f"The attention at {ctx.path!r} compresses its keys and so cannot recall what it read; "
                    "leave `compress` out, or train without `memory`."
                )
            k_BGMK, v_BGMK, j_BM = self.compress(k_BGMK, v_BGMK, ctx)
        elif ctx.cache is not None:
            recalled = ctx.cache.recall(ctx.path, x_BLD, self.pattern.reach)
            if recalled is None:
                k_BGMK, v_BGMK, j_BM = ctx.cache.extend(
                    ctx.path, k_BGMK, v_BGMK, self.pattern.reach, shared=True
                )
            elif recalled[1].shape[1]:
                k_BGMK, v_BGMK, j_BM = self._recall(q_BHLK, k_BGMK, v_BGMK, *recalled, position, ctx)
        return q_BHLK, k_BGMK, v_BGMK, j_BM, position, raw_BHLK

    def _recall(
        self,
        q_BHLK: Tensor,
        k_BGMK: Tensor,
        v_BGMK: Tensor,
        x_BMD: Tensor,
        j_BM: Tensor,
        position: Position | None,
        ctx: Context,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values of what this layer read before, made anew, and those of now."""
        asks, bias = self.heads * self.size, self.qkv.bias
        made = F.linear(x_BMD, self.qkv.weight[asks:], None if bias is None else bias[asks:])
        old_k, old_v = self._split(made).chunk(2, 1)
        if position is not None:  # turned alone: the queries stand elsewhere
            like_BHMK = q_BHLK[:, :, :1].expand(-1, -1, old_k.shape[2], -1)
            _, old_k = position.turn(like_BHMK, old_k, j_BM)
        both = torch.cat([old_k, k_BGMK], 2), torch.cat([old_v, v_BGMK], 2)
        return *both, ctx.once(("recalled", j_BM.shape[1]), lambda: joined(j_BM, ctx.pos_BL))

    def _read(
        self, x_BLD: Tensor, ctx: Context
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Position | None, Tensor]:
        """Keys and values of the encoder's memory, computed once where there is a cache."""
        memory = ctx.memory
        if memory is None:
            raise UsageError(
                f"The cross-attention at {ctx.path!r} needs an encoder's memory, but none was given."
            )

        def make() -> tuple[Tensor, ...]:
            return self._split(self.kv(memory.x_BMD)).chunk(2, 1)

        k_BGMK, v_BGMK = make() if ctx.cache is None else ctx.cache.once(ctx.path, make)
        q_BHLK = self._split(self.q(x_BLD))
        return q_BHLK, k_BGMK, v_BGMK, memory.pos_BM, None, q_BHLK

    def _split(self, x_BLX: Tensor) -> Tensor:
        return x_BLX.view(*x_BLX.shape[:2], -1, self.size).transpose(1, 2)
