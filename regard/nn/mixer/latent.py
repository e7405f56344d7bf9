"""Attention whose keys and values come from a few numbers of each token, and only those are kept."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.attend import attend
from regard.nn.context import Context
from regard.nn.mixer.mixer import Mixer
from regard.nn.norm import Rms
from regard.nn.pattern import Full, Pattern
from regard.nn.position import Position, TransformerXL
from regard.nn.product import Linear
from regard.nn.score import Dot
from regard.spec import Recipe, of, part


@part
class Latent(Mixer):
    r"""Each token is squeezed into a latent c; all heads make their keys and values from it.

        c_j = rms(x_j W^DKV),   k_j^h = [c_j W_h^UK; r_j],   v_j^h = c_j W_h^UV,   r_j = turn(x_j W^KR)
        s_ij = [q_i^C; q_i^R] . k_j / sqrt(K + R),   q_i^R turned too

    Multi-head latent attention, DeepSeek-AI 2024 (DeepSeek-V2), section 2.1,
    https://arxiv.org/abs/2405.04434. A cache holds c and r, the one key that all heads share, and nothing
    else: rank + shared numbers a token instead of 2 H K. r carries the position where that turns keys, as
    rotary does; other schemes do as always. While few queries look back, keys and values are never made:

        q^C . (c W^UK) = (q^C W^UK^T) . c,   sum_j w_ij (c_j W^UV) = (sum_j w_ij c_j) W^UV

    which is multi-query attention over the latents themselves.

    Options:
      pattern: which keys a query may see
      position: this layer's own scheme, in place of the one that the stack shares
      rank: width of c; 4 K if not given
      shared: R, width of r; K / 2 if not given
      queries: queries come from a latent of this width too; from the stream if not given
      dropout: on the attention weights
    """

    def __init__(
        self,
        dims: Dims,
        pattern: Recipe[Pattern] = of(Full),
        position: Recipe[Position] | None = None,
        rank: int | None = None,
        shared: int | None = None,
        queries: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads, self.size, self.dropout = dims.heads, dims.size, dropout
        self.rank, self.shared = rank or 4 * self.size, shared or -(-self.size // 4) * 2  # pairs, for rotary
        self.down = Linear(dims.width, self.rank + self.shared, bias=False)
        self.norm = Rms(dims.but(width=self.rank, head=self.size))
        self.up = Linear(self.rank, 2 * self.heads * self.size, bias=False)
        self.q_down = Linear(dims.width, queries, bias=False) if queries else None
        self.q_norm = Rms(dims.but(width=queries, head=self.size)) if queries else None
        self.q = Linear(queries or dims.width, self.heads * (self.size + self.shared), bias=False)
        self.out = Linear(self.heads * self.size, dims.width, bias=False)
        self.score = Dot(dims, scale=(self.size + self.shared) ** -0.5)
        self.pattern = pattern.build(dims)
        self.position = position.build(dims.but(layers=1)) if position else None
        if self.position is not None:
            self.meet(self.position)

    def meet(self, position: Position) -> None:
        """Refuse a scheme that needs whole heads, when the model is built: here only parts of them turn."""
        if position.valued or isinstance(position, TransformerXL):
            raise UsageError(
                "Latent attention turns a part of each query and reads latents, so that positions cannot add "
                f"to values or to whole queries, but {type(position).__name__} does; take rotary, say."
            )

    def forward(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        """Ask, look at latents or at what is made of them, answer."""
        position, K = self.position or ctx.position, self.size
        q_BHLX = self._queries(x_BLD).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q_BHLK, r_BHLR = q_BHLX.split([K, self.shared], -1)
        c_BLC, k_BLR = self.down(x_BLD).split([self.rank, self.shared], -1)
        c_B1MC, k_B1MR, j_BM, raw_BHLK = self.norm(c_BLC)[:, None], k_BLR[:, None], ctx.pos_BL, q_BHLK
        if position is not None:
            r_BHLR, k_B1MR = position.turn(r_BHLR, k_B1MR, ctx.pos_BL)
            raw_BHLK = position.ask(q_BHLK, x_BLD)
            if ctx.losses is not None:
                position.charge(ctx, raw_BHLK)
        if ctx.cache is not None:
            if ctx.cache.states:
                raise UsageError(
                    f"The latents at {ctx.path!r} cannot be made anew from what was read; train without "
                    "`memory`, or take attention."
                )
            reach = self.pattern.reach
            c_B1MC, k_B1MR, j_BM = ctx.cache.extend(ctx.path, c_B1MC, k_B1MR, reach, shared=True)
        # What making keys and values costs each key is more than what looking at latents costs each query.
        few = ctx.cache is not None and x_BLD.shape[1] * (self.rank - K) < self.rank * K
        k_HKC, v_HKC = self.up.weight.unflatten(0, (2, self.heads, K))
        if few:
            q_BHLX = torch.cat([q_BHLK @ k_HKC, r_BHLR], -1)
            k = v = torch.cat([c_B1MC, k_B1MR], -1)  # of what is read, only the latent counts
        else:
            q_BHLX = torch.cat([q_BHLK, r_BHLR], -1)
            made = self.up(c_B1MC[:, 0]).unflatten(-1, (2, self.heads, K)).transpose(1, 3)
            made_k, made_v = made[:, :, 0], made[:, :, 1]
            k = torch.cat([made_k, k_B1MR.expand(-1, self.heads, -1, -1)], -1)
            v = F.pad(made_v, (0, self.shared))  # kernels want values as wide as keys
        y_BHLX = attend(
            q_BHLX,
            k,
            v,
            j_BM,
            ctx,
            score=self.score,
            pattern=self.pattern if position is None else position.narrow(self.pattern),
            position=position,
            raw_BHLK=raw_BHLK,
            dropout=self.dropout if self.training else 0.0,
        )
        y_BHLK = y_BHLX[..., : self.rank] @ v_HKC.mT if few else y_BHLX[..., :K]
        y_BLD: Tensor = self.out(y_BHLK.transpose(1, 2).flatten(2))
        return y_BLD

    def _queries(self, x_BLD: Tensor) -> Tensor:
        if self.q_down is not None and self.q_norm is not None:
            x_BLD = self.q_norm(self.q_down(x_BLD))
        q_BLX: Tensor = self.q(x_BLD)
        return q_BLX
