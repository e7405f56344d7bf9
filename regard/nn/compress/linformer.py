"""All keys mixed into a fixed few by learned matrices."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.compress.compress import Compress, placed
from regard.nn.context import Context
from regard.nn.pattern import Full, Pattern
from regard.nn.position.position import Position
from regard.spec import part


@part
class Linformer(Compress):
    r"""Whatever the length n, a query meets k keys, each a learned mixture of all tokens.

        head = softmax(Q (E K)^T / sqrt(d)) (F V),   E, F of k x n

    Wang et al. 2020, section 4, https://arxiv.org/abs/2006.04768. n is dims.length; a shorter input takes the
    first columns of E and F, and padding is zero before it is mixed. The token at position p always meets
    column p, on whichever side padding stands. Every key holds every token, the future too: encoders only.
    Mixed keys stand nowhere, so that positions must enter before (learned, sinusoidal, rotary), not as a
    bias.

    Differs from the paper: E and F are born with a variance of 1/n, so that mixed keys are as large as keys.

    Options:
      keys: k, how many are left
      sharing: what has matrices of its own: none, every head; headwise, every layer; kv, every layer, and E
        is F; layerwise, the stack has one
    """

    def __init__(
        self,
        dims: Dims,
        keys: int = 128,
        sharing: Literal["none", "headwise", "kv", "layerwise"] = "headwise",
    ) -> None:
        super().__init__()
        if keys < 1:
            raise UsageError(f"Linformer must leave at least 1 key, but `keys` is {keys}.")
        self.limit, self.sharing = dims.length, sharing
        heads = (dims.heads,) if sharing == "none" else ()
        shape = (*heads, keys, dims.length)
        self.e = nn.Parameter(torch.randn(shape) * dims.length**-0.5)
        both = sharing in ("none", "headwise")
        self.f = nn.Parameter(torch.randn(shape) * dims.length**-0.5) if both else None

    def check(self, pattern: Pattern) -> None:
        """Every key holds the future."""
        if not isinstance(pattern, Full):
            raise UsageError(
                "Linformer mixes all tokens into every key, so that its pattern must be full, but is "
                f"{pattern}; use it in an encoder, and compress by convolution where the future is hidden."
            )

    def meet(self, position: Position) -> None:
        """Keys have no place."""
        if position.biased or position.valued:
            raise UsageError(
                "Linformer's keys stand nowhere, so that positions cannot be a bias on scores, but are "
                f"{type(position).__name__}; take learned, sinusoidal or rotary ones."
            )

    def share(self, first: Compress) -> None:
        """One matrix for all layers."""
        if self.sharing != "layerwise" or not isinstance(first, Linformer):
            return
        if first.sharing != "layerwise" or first.e.shape != self.e.shape:
            raise UsageError(
                "Layers that share one Linformer matrix must all say so with as many keys, but the first has "
                f"sharing {first.sharing!r} and {first.e.shape[-2]} keys."
            )
        self.e = first.e

    def forward(self, k_BGLK: Tensor, v_BGLK: Tensor, ctx: Context) -> tuple[Tensor, Tensor, Tensor | None]:
        """E K and F V."""
        if ctx.cache is not None:
            raise UsageError("Linformer cannot go on from a cache: each new token would change every key.")
        f = self.e if self.f is None else self.f
        return self._mix(self.e, placed(k_BGLK, ctx)), self._mix(f, placed(v_BGLK, ctx)), None

    def _mix(self, e: Tensor, t_BGLK: Tensor) -> Tensor:
        L, G = t_BGLK.shape[2], t_BGLK.shape[1]
        if self.sharing == "none":
            return e[..., :L] @ t_BGLK
        t_BMX = e[..., :L] @ t_BGLK.transpose(1, 2).flatten(2)  # one product for all heads
        return t_BMX.unflatten(2, (G, -1)).transpose(1, 2)  # type: ignore[no-any-return]
