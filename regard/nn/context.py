"""What a sublayer may look at besides its own input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from regard.nn.slots import stacked

if TYPE_CHECKING:
    from regard.nn.cache import Cache
    from regard.nn.position.position import Position

How = Literal["auto", "fused", "blockwise", "explicit", "flex"]


def places(ids_BL: Tensor, start_B: Tensor | None = None) -> Tensor:
    """Where each token stands in its own row: 0, 1, 2, ... over real tokens, -1 at padding (a negative id).

    `start_B` continues rows that already hold that many tokens.
    """
    real_BL = ids_BL >= 0
    pos_BL = real_BL.cumsum(1) - 1
    if start_B is not None:
        pos_BL = pos_BL + start_B[:, None]
    return pos_BL.masked_fill(~real_BL, -1)


@dataclass(frozen=True)
class Memory:
    """What an encoder hands to a decoder: states and their positions (-1 at padding).

    `pos_BM` has one row for the whole batch where nothing is padded (`plain`).
    """

    x_BMD: Tensor
    pos_BM: Tensor
    plain: bool = False

    def pick(self, index_N: Tensor) -> Memory:
        """The memory of some rows, in that order."""
        pos_BM = self.pos_BM if self.plain else self.pos_BM.index_select(0, index_N)
        return Memory(self.x_BMD.index_select(0, index_N), pos_BM, self.plain)

    @property
    def width(self) -> int:
        """Columns up to the last one that some row fills."""
        return int((self.pos_BM >= 0).any(0).nonzero().max()) + 1

    def cut(self, width: int) -> Memory:
        """Only the first columns."""
        return Memory(self.x_BMD[:, :width], self.pos_BM[:, :width], self.plain)

    def join(self, other: Memory) -> Memory:
        """The memory of these rows and of those, filled up to the longer one."""
        mine, theirs = (m.pos_BM.expand(len(m.x_BMD), -1) for m in (self, other))
        return Memory(stacked(self.x_BMD, other.x_BMD, 1), stacked(mine, theirs, 1, empty=-1))


@dataclass(frozen=True)
class Context:
    """Passed down, never stored. The path is the address of caches, recordings and losses alike.

    pos_BL    position of each token in its row, -1 at padding; one row for all where `plain`
    plain     nothing is padded: positions run 0, 1, 2, ... or go on where the cache stopped
    memory    what the encoder said
    cache     keys and values of earlier calls
    tape      if given, attention weights are written here under their path
    losses    if given, auxiliary losses are written here under their path
    layers    if given, the stream after each block is put here
    prefix_B  how many tokens of each row are read in both directions (prefix language models)
    position  the scheme that all self-attentions of the stack share
    how       which of attend's ways to the same sum is taken
    """

    pos_BL: Tensor
    plain: bool = False
    path: str = ""
    memory: Memory | None = None
    cache: Cache | None = None
    tape: dict[str, Tensor] | None = None
    losses: dict[str, Tensor] | None = None
    layers: list[Tensor] | None = None
    prefix_B: Tensor | None = None
    position: Position | None = None
    how: How = "auto"
    known: dict[Any, Any] = field(default_factory=dict, repr=False)

    def at(self, name: object, **changes: Any) -> Context:
        """The same context, one step deeper."""
        return self.but(path=f"{self.path}/{name}" if self.path else str(name), **changes)

    def but(self, **changes: Any) -> Context:
        """The same context with a few fields changed."""
        return Context(
            **{**self.__dict__, **changes}
        )  # as dataclasses.replace, but for what it asks every time

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What all layers of one call share (a bias, a mask) is made by the first that asks."""
        if key not in self.known:
            self.known[key] = make()
        return self.known[key]


def plain_places(start: int, length: int, device: torch.device) -> Tensor:
    """Positions of a batch without padding, one row for all: start, start + 1, ..."""
    return torch.arange(start, start + length, device=device)[None]
