"""Keys that lie far apart, brought together by sorting."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from regard.nn.pattern.pattern import Pattern


class Lanes:
    r"""Positions dealt out to `stride` lanes in turn: the columns of a table, read column by column.

        lane(i) = i mod stride,   row(i) = i div stride

    Within a lane a query sees rows by the pattern `inner`; between lanes nobody sees anybody. So keys that
    are `stride` apart lie side by side, and attention to them is attention over length / stride keys.
    """

    def __init__(self, stride: int, inner: Pattern) -> None:
        self.stride, self.inner = stride, inner

    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        """True where the query at i meets the key at j in a lane and sees it."""
        return ((i - j) % self.stride == 0) & self.inner(i // self.stride, j // self.stride)

    def rows(self, length: int) -> int:
        """How many rows a lane has."""
        return -(-length // self.stride)

    def queries(self, t_BHLX: Tensor, fill: float = 0) -> Tensor:
        """Tokens in lanes: (B, H, lanes, rows, X)."""
        t_BHLX = F.pad(t_BHLX, (0, 0, 0, -t_BHLX.shape[2] % self.stride), value=fill)
        lanes: Tensor = t_BHLX.unflatten(2, (-1, self.stride)).transpose(2, 3)
        return lanes

    def keys(self, t_BHLX: Tensor, fill: float = 0) -> Tensor:
        """Keys in lanes: (B, H, lanes, rows, X)."""
        return self.queries(t_BHLX, fill)

    def back(self, t_BHSRX: Tensor, length: int, fill: float = 0) -> Tensor:
        """From lanes to the order of tokens: (B, H, L, X)."""
        return t_BHSRX.transpose(2, 3).flatten(2, 3)[:, :, :length]


class Summaries(Lanes):
    r"""All lanes share their keys: the columns first .. first + count - 1 of every block of `block` tokens.

    With block / count lanes a block of queries takes `count` rows, as many as the block has keys. If keys are
    moved one block on, a query sees, in plain causal order, the keys of all blocks before its own; only of
    the block just before, it sees no more than its row in its own block, and the rest it must see otherwise.
    """

    def __init__(self, block: int, first: int, count: int, inner: Pattern) -> None:
        super().__init__(block // count, inner)
        self.block, self.first, self.count = block, first, count

    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        """True where the key is a summary whose turn has come."""
        column = j % self.block - self.first
        row = (j // self.block + 1) * self.count + column
        return (column >= 0) & (column < self.count) & self.inner(i // self.stride, row)

    def rows(self, length: int) -> int:
        """The first block sees none."""
        return (-(-length // self.block) - 1) * self.count

    def queries(self, t_BHLX: Tensor, fill: float = 0) -> Tensor:
        """Tokens in lanes, from the second block on."""
        t_BHLX = F.pad(t_BHLX, (0, 0, 0, -t_BHLX.shape[2] % self.block), value=fill)
        return super().queries(t_BHLX, fill)[:, :, :, self.count :]

    def keys(self, t_BHLX: Tensor, fill: float = 0) -> Tensor:
        """The summaries, the same in every lane; those of the last block are seen by nobody."""
        t_BHLX = F.pad(t_BHLX, (0, 0, 0, -t_BHLX.shape[2] % self.block), value=fill)
        columns = slice(self.first, self.first + self.count)
        chosen = t_BHLX.unflatten(2, (-1, self.block))[:, :, :-1, columns].flatten(2, 3)
        lanes: Tensor = chosen[:, :, None].expand(-1, -1, self.stride, -1, -1)
        return lanes

    def back(self, t_BHSRX: Tensor, length: int, fill: float = 0) -> Tensor:
        """To the order of tokens; the first block has seen nothing."""
        return super().back(F.pad(t_BHSRX, (0, 0, self.count, 0), value=fill), length, fill)
