"""Neighbouring keys folded into one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.cache import Cache
from regard.nn.compress.compress import Compress, placed
from regard.nn.context import Context
from regard.nn.pattern import Causal, Pattern
from regard.spec import part

FAR = 2**40  # beyond any position


@part
class Convolution(Compress):
    r"""Every w neighbouring tokens become one key and one value, by a convolution of width and stride w.

        k'_m = sum_{n < w} k_{wm+n} W_n^k,   v'_m = sum_{n < w} v_{wm+n} W_n^v

    Memory-compressed attention, Liu et al. 2018, section 4.2.3, https://arxiv.org/abs/1801.10198. k'_m stands
    where its last token stands, at w m + w - 1, so that a query sees it once all that is in it is past.
    Groups that are not yet full are not seen. The first token's own key and value are kept beside the folded
    ones, seen by all, so that nobody is left with nothing to look at; so does the authors' code
    (tensor2tensor).

    Differs from the authors' code: there a group is seen one token later. Each head is folded by itself; the
    paper does not say.

    Options:
      width: w, how many tokens become one
    """

    def __init__(self, dims: Dims, width: int = 3) -> None:
        super().__init__()
        if width < 2:
            raise UsageError(f"A convolution must fold at least 2 tokens into one, but width is {width}.")
        self.width = width
        shape = dims.heads, width * dims.size, dims.size
        self.k = nn.Parameter(torch.randn(shape) * shape[1] ** -0.5)  # folded keys are as large as keys
        self.v = nn.Parameter(torch.randn(shape) * shape[1] ** -0.5)

    def check(self, pattern: Pattern) -> None:
        """Only a causal pattern leaves nobody with nothing and shows each group when it is full."""
        if not isinstance(pattern, Causal):
            raise UsageError(
                f"Keys folded by convolution need the pattern causal, but it is {pattern}; take that, or "
                "compress by linformer where all see all."
            )

    def columns(self, tokens: int, spare: int = 0) -> int:
        """The first token, the full groups, and the last tokens, from which the next group is made."""
        return 1 + tokens // self.width + min(tokens, self.width + spare)

    def forward(self, k_BGLK: Tensor, v_BGLK: Tensor, ctx: Context) -> tuple[Tensor, Tensor, Tensor | None]:
        """The first token's key and value, and those of all full groups."""
        if ctx.cache is not None:
            k_BGMK, v_BGMK = self._go_on(k_BGLK, v_BGLK, ctx, ctx.cache)
        else:
            whole = k_BGLK.shape[2] // self.width * self.width
            k_BGLK, v_BGLK = placed(k_BGLK, ctx), placed(v_BGLK, ctx)
            k_BGMK = torch.cat([k_BGLK[:, :, :1], self._fold(k_BGLK[:, :, :whole], self.k)], 2)
            v_BGMK = torch.cat([v_BGLK[:, :, :1], self._fold(v_BGLK[:, :, :whole], self.v)], 2)
        # Column 0 stands at 0, column m + 1 at w m + w - 1, in every row: a row that is not so far has no
        # query that could look there.
        j_M = torch.arange(k_BGMK.shape[2], device=ctx.pos_BL.device) * self.width - 1
        return k_BGMK, v_BGMK, j_M.clamp(min=0)[None]

    def _fold(self, t_BGLK: Tensor, weight: Tensor) -> Tensor:
        folded: Tensor = t_BGLK.unflatten(2, (-1, self.width)).flatten(3) @ weight
        return folded

    def _go_on(self, k_BGLK: Tensor, v_BGLK: Tensor, ctx: Context, cache: Cache) -> tuple[Tensor, Tensor]:
        """Fold the groups that these tokens make full; what they need of earlier calls is in the tail."""
        w, (B, G, L, K), pos_BL = self.width, k_BGLK.shape, ctx.pos_BL
        start_B1 = (pos_BL == 0).int().argmax(1, keepdim=True)  # the column of the first token, if it is here
        begun_B1 = (pos_BL == 0).any(1, keepdim=True)
        first = start_B1[:, None, :, None].expand(B, G, 1, K)
        new_k, new_v = k_BGLK.gather(2, first), v_BGLK.gather(2, first)
        k_BGMK, v_BGMK, j_BM = cache.extend(f"{ctx.path}/tail", k_BGLK, v_BGLK, w)
        from_B1 = torch.where(pos_BL >= 0, pos_BL, FAR).amin(1, keepdim=True) // w * w
        count = (L + w - 1) // w  # as many groups as these tokens may fill
        here_BM = (j_BM >= from_B1) & (j_BM - from_B1 < count * w)
        column_BM = torch.where(here_BM, j_BM - from_B1, count * w).expand(B, -1)
        index = column_BM[:, None, :, None].expand(-1, G, -1, K)
        rooms = (t.new_zeros(B, G, count * w + 1, K).scatter(2, index, t) for t in (k_BGMK, v_BGMK))
        folded = (self._fold(t[:, :, :-1], m) for t, m in zip(rooms, (self.k, self.v), strict=True))
        new_k, new_v = (torch.cat(pair, 2) for pair in zip((new_k, new_v), folded, strict=True))
        group_BN = from_B1 // w + torch.arange(count, device=pos_BL.device)
        full_BN = group_BN * w + w - 1 <= pos_BL.amax(1, keepdim=True)
        column_BN = torch.cat([torch.where(begun_B1, 0, -1), torch.where(full_BN, group_BN + 1, -1)], 1)
        tokens = cache.length if cache.capacity is None else cache.capacity
        return cache.place(ctx.path, new_k, new_v, column_BN.expand(B, -1), 1 + tokens // w)
