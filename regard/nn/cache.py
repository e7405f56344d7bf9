"""What a model remembers between calls.

A cache is an argument, addressed by path and not by module, so that shared weights keep separate memories.
Attention needs no order among its keys, only their positions: a column whose position is -1 is never seen.
That one rule serves padding, preallocated columns not yet written, and the ring of a sliding window.

Beams are a tree: the hypotheses of a sentence share their past, and a new choice of them changes who descends
from whom. So nothing is moved: the columns of all of them stand together, once for each sentence, and a table
says which of them each hypothesis descends from. Columns from which nobody descends any more are written
over, and let go of when they have become the most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import UsageError
from regard.nn.context import Memory
from regard.nn.slots import Every, Kept, Placed, Ring, Slot, Swapped, grown, in_bytes, stacked

Precision = Literal["full", "int8"]


class Cache:
    """Keys and values of earlier tokens, and whatever else a sublayer must remember.

    Options:
      batch: rows
      length: columns to preallocate (static: shapes never change); None grows as needed
      spare: how many tokens a `rollback` may take back behind a sliding window
      precision: of keys and values: full, as they come; int8, a byte a number and two for a vector's scale

    states says whether layers' inputs are kept, to be recalled, and not keys and values.
    """

    states: bool = False

    def __init__(
        self, batch: int, length: int | None = None, spare: int = 0, precision: Precision = "full"
    ) -> None:
        if precision not in ("full", "int8"):
            raise UsageError(f"The precision of a cache must be full or int8, but is {precision!r}.")
        self.batch, self.capacity, self.spare, self.precision = batch, length, spare, precision
        self.length = 0  # tokens of each row so far
        self.columns = 0  # as many, or those of all rows that share a source
        self.each = 1  # rows that share a source
        self.own_BNM: Tensor | None = None  # which columns of its source each row descends from; None: all
        self.before = 0  # columns before the call at hand
        self.place_BM: Tensor | None = None  # where its beams write; None: behind all columns
        self.plain = True  # no padding so far: every row holds positions 0 .. length - 1
        self.memory: Memory | None = None
        self.slots: dict[str, Slot] = {}
        self._pos_BM: Tensor | None = None  # of all columns, shared by the slots that keep every key
        self._new_BL: Tensor | None = None
        self._seen_BM: Tensor | None = None

    @property
    def next_B(self) -> Tensor:
        """The position that the next token of each row will have."""
        return self._next(self.columns)

    def _next(self, columns: int) -> Tensor:
        if self._pos_BM is None or not columns:
            return torch.zeros(self.batch, dtype=torch.long)
        pos_BM = self._pos_BM[:, :columns]
        if self.own_BNM is not None:
            return (pos_BM[:, None].where(self.own_BNM, -1).amax(-1) + 1).expand(-1, self.each).flatten()
        return (pos_BM.amax(1) + 1).expand(self.batch)

    def begin(self, pos_BL: Tensor, plain: bool) -> None:
        """A model call starts: its tokens stand at `pos_BL`; called by the model, before its stack runs."""
        new = pos_BL.shape[1]
        if self.capacity is not None and self.length + new > self.capacity:
            raise UsageError(
                f"The cache must hold every token, but {self.length} + {new} exceed its length "
                f"{self.capacity}; make it with a larger length, or with length=None to let it grow."
            )
        self.plain = self.plain and plain
        self._new_BL, self.length = pos_BL, self.length + new
        start = self.before = self.columns
        self.columns, self.place_BM = start + new, None
        if self.own_BNM is not None:
            self.place_BM = self._free(start, new)
            pos_BL = pos_BL.expand(self.batch, -1).reshape(self.sources, -1)
        self._pos_BM = grown(self._pos_BM, start, self.columns - start, 1, pos_BL, self.capacity, empty=-1)
        if pos_BL.shape[0] > self._pos_BM.shape[0]:
            self._pos_BM = self._pos_BM.expand(pos_BL.shape[0], -1).clone()
        if self.place_BM is None:
            self._pos_BM[:, start : self.columns] = pos_BL
        else:
            self._pos_BM.scatter_(1, self.place_BM, pos_BL)
        self._seen_BM = self._pos_BM if self.capacity is not None else self._pos_BM[:, : self.columns]

    def _free(self, held: int, new: int) -> Tensor:
        """Where the new tokens of all rows stand, those of a row one after the other: in the first columns
        of their source from which nobody descends, or behind them.
        """
        assert self.own_BNM is not None
        live_BM = self.own_BNM.any(1)
        self.columns = max(held, int(live_BM.sum(1).max()) + self.each * new)
        wider = (0, self.columns - held)
        place_BM = F.pad(live_BM, wider).byte().argsort(dim=1, stable=True)[:, : self.each * new]
        place_BM = place_BM.contiguous()  # all layers read it
        mine_BNL = place_BM.unflatten(1, (self.each, new))
        self.own_BNM = F.pad(self.own_BNM, wider).scatter_(2, mine_BNL, True)
        return place_BM

    def buffers(self) -> Iterator[tuple[Tensor, int]]:
        """What has a column for each token, and along which axis."""
        if self._pos_BM is not None:
            yield self._pos_BM, 1
        for slot in self.slots.values():
            if isinstance(slot, Every):
                yield from ((held, 2) for held in slot.state)

    def reserve(self, new: int) -> bool:
        """Make place for so many more columns, so that the next call only writes; say if it was needed."""
        if self.capacity is not None or self._pos_BM is None:
            return False
        before = self._pos_BM
        self._pos_BM = grown(before, self.columns, new, 1, before, None, empty=-1)
        for slot in self.slots.values():
            slot.reserve(new)
        return self._pos_BM is not before

    @property
    def seen_BM(self) -> Tensor | None:
        """Positions of all columns, the new ones included; one row for all where nothing is padded."""
        return self._seen_BM

    @property
    def new_BL(self) -> Tensor:
        """Positions of the tokens of the call at hand."""
        assert self._new_BL is not None, "the model opens a call with begin()"
        return self._new_BL

    def extend(
        self, path: str, k_BGMK: Tensor, v_BGMK: Tensor, reach: int | None = None, shared: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Add new keys and values; get all that may still be seen, with their positions.

        `reach` is how far back the pattern can see: what lies behind is forgotten. Who can have those of
        several rows together, as `own_BNM` says, and so fewer rows, says `shared`.
        """
        slot = self.slots.get(path)
        if slot is None:
            slot = self.slots[path] = Every(self, shared) if reach is None else Ring(self, reach)
        assert isinstance(slot, Every | Ring)
        return slot.extend(k_BGMK, v_BGMK)

    def place(
        self, path: str, k_BGMK: Tensor, v_BGMK: Tensor, column_BM: Tensor, columns: int
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values where each row says (-1: nowhere); get the first `columns` of all."""
        slot = self.slots.setdefault(path, Placed(self))
        assert isinstance(slot, Placed)
        return slot.place(k_BGMK, v_BGMK, column_BM, columns)

    def once(self, path: str, make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """What is computed at the first call and stays: the keys and values of an encoder's memory."""
        slot = self.slots.get(path)
        if slot is None:
            made = tuple(t.contiguous() for t in make())  # they will be read often
            slot = self.slots[path] = Kept(self.pack(made), made[0].dtype)
        assert isinstance(slot, Kept)
        return self.unpack(slot.state, slot.dtype)

    def swap(self, path: str, new: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """Put the state of a recurrent or convolutional part and get the one before."""
        slot = self.slots.get(path)
        self.slots[path] = Swapped(new)
        return slot.state if isinstance(slot, Swapped) else None

    def recall(self, path: str, x_BLD: Tensor, reach: int | None = None) -> tuple[Tensor, Tensor] | None:
        """What a layer read of earlier tokens, without gradient, and where they stood.

        None here: keys and values are kept. A memory over segments may keep this instead (see `Recent`).
        """
        return None

    def reorder(self, index_N: Tensor, sources_B: Tensor | None = None) -> None:
        """Keep these rows, in this order: beams that survive, requests that go on. May also repeat rows.

        `sources_B`: what was computed once from the sources (an encoder's memory, its keys and values) is not
        repeated with the rows, but kept for these sources; the rows are then as many for each, in order. Nor
        are the keys and values of a past that they share.
        """
        of_B = index_N // self.each if sources_B is None else sources_B
        each, unmoved = len(index_N) // len(of_B), _in_order(of_B, self.sources)
        if unmoved and each == self.each and _in_order(index_N, self.batch):
            return
        if tree := self.own_BNM is not None or (sources_B is not None and self._shares):
            held_BNM = self.own_BNM
            if held_BNM is None:
                assert self._pos_BM is not None
                held_BNM = (self._pos_BM[:, None, : self.columns] >= 0).expand(self.batch, -1, -1)
            self.own_BNM = held_BNM.flatten(0, 1).index_select(0, index_N).unflatten(0, (-1, each))
        moved_M = None if unmoved else _moved(of_B, self.sources)
        for slot in self.slots.values():
            if not (isinstance(slot, Kept) or (tree and isinstance(slot, Every))):
                slot.pick(index_N)
            elif moved_M is not None and not any(t.requires_grad for t in slot.state):
                slot.fill(of_B, moved_M)
            elif not unmoved:
                slot.pick(of_B)
        if self._pos_BM is not None and self._pos_BM.shape[0] > 1:
            self._pos_BM = self._pos_BM.index_select(0, of_B if tree else index_N)
        if self.memory is not None and not unmoved:
            self.memory = self.memory.pick(of_B)
        fewer = len(of_B) < self.sources
        self.batch, self.each = len(index_N), each
        if tree and fewer:
            self._shed()

    @property
    def joins(self) -> bool:
        """Whether the rows of another cache can come to stand behind its own: beams that keep every key."""
        return self.own_BNM is not None and all(isinstance(s, Every | Kept) for s in self.slots.values())

    def join(self, other: Cache) -> None:
        """Let the rows of another cache, as many for each source, stand behind those of this one.

        Rows may have come to different lengths: each goes on from its own past.
        """
        if not (self.joins and other.joins) or self.each != other.each:
            raise UsageError(
                "Only the rows of beams that keep every key, as many for each source, can be joined: here "
                f"{self.each} and {other.each} rows share a source; write them apart."
            )
        assert self.own_BNM is not None and self._pos_BM is not None
        assert other.own_BNM is not None and other._pos_BM is not None
        held, theirs = self.columns, other.columns
        pos_BM = self._pos_BM[:, :held].expand(self.sources, -1)
        self._pos_BM = stacked(pos_BM, other._pos_BM[:, :theirs].expand(other.sources, -1), 1, empty=-1)
        self.own_BNM = stacked(self.own_BNM, other.own_BNM, 2)
        widths = (0, 0)
        if self.memory is not None and other.memory is not None:
            widths = self.memory.width, other.memory.width
            self.memory = self.memory.cut(widths[0]).join(other.memory.cut(widths[1]))
        for path, slot in self.slots.items():
            slot.join(other.slots[path], *(widths if isinstance(slot, Kept) else (held, theirs)))
        self.batch, self.columns, self.plain = self.batch + other.batch, max(held, theirs), False
        self.length = max(self.length, other.length)

    def _shed(self) -> None:
        """Let go of the columns from which no row descends, if they are the most."""
        assert self.own_BNM is not None and self._pos_BM is not None
        live_BM = self.own_BNM.any(1)
        most = int(live_BM.sum(1).max())
        if 2 * most > self.columns:
            return
        kept_BM = live_BM.byte().argsort(dim=1, descending=True, stable=True)[:, :most]
        self._pos_BM = self._pos_BM.expand(len(kept_BM), -1).gather(1, kept_BM)
        self.own_BNM = self.own_BNM.gather(2, kept_BM[:, None].expand(-1, self.each, -1))
        self.columns = most
        for slot in self.slots.values():
            if isinstance(slot, Every):
                slot.shed(kept_BM)

    @property
    def sources(self) -> int:
        """How many sources there are: as many as rows, unless rows share them."""
        return self.batch // self.each

    @property
    def _shares(self) -> bool:
        every = [slot for slot in self.slots.values() if isinstance(slot, Every)]
        return self.capacity is None and bool(every) and all(slot.shared for slot in every)

    def rollback(self, count: int) -> None:
        """Take back the last `count` columns, as if they had never been fed."""
        if not 0 <= count <= self.length:
            raise UsageError(f"At most {self.length} columns can be taken back, but {count} were asked for.")
        if not count or self._pos_BM is None:
            return
        if self.own_BNM is not None:
            raise UsageError("Tokens of beams cannot be taken back: they stand among those of other beams.")
        next_B = self._next(self.length - count).to(self._pos_BM.device)
        for path, slot in self.slots.items():  # refuse before anything is changed
            slot.check(next_B, path)
        self.length -= count
        self.columns = self.length
        self._pos_BM[:, self.length :] = -1
        for slot in self.slots.values():
            slot.rollback(next_B)

    def pack(self, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What is kept of these tensors, which hold a vector for each row, group and column.

        int8:  n = round(x / s),   s = max |x| / 127
        """
        return given if self.precision == "full" else tuple(p for t in given for p in in_bytes(t))

    def unpack(self, kept: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        """The tensors again, as near as they were kept."""
        if self.precision == "full":
            return kept
        pairs = zip(kept[::2], kept[1::2], strict=True)
        return tuple(n.to(dtype) * s.to(dtype) if s.shape[-1] else n for n, s in pairs)

    @property
    def nbytes(self) -> int:
        """Bytes of what is remembered: columns in use if the cache grows, all columns if it is static."""
        return sum(slot.nbytes for slot in self.slots.values())


def _moved(index_N: Tensor, count: int) -> Tensor | None:
    """Which of the rows that are kept stand elsewhere, where these are few."""
    moved_M = (index_N != torch.arange(len(index_N), device=index_N.device)).nonzero()[:, 0]
    return moved_M if len(index_N) <= count and 2 * len(moved_M) <= len(index_N) else None


def _in_order(index_N: Tensor, count: int) -> bool:
    """Whether these are 0 .. count - 1."""
    return len(index_N) == count and torch.equal(index_N, torch.arange(count, device=index_N.device))
