"""What a model remembers between calls.

A cache is an argument, addressed by path and not by module, so that shared weights keep separate memories.
Attention needs no order among its keys, only their positions: a column whose position is -1 is never seen.
That one rule serves padding, preallocated columns not yet written, and the ring of a sliding window.

Beams are a tree: the hypotheses of a sentence share their past, and a new choice of them changes who descends
from whom. So nothing is moved: the columns of all of them stand together, once for each sentence, and a table
says which of them each hypothesis descends from. Columns from which nobody descends any more are let go of
when they have become the most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor

from regard.errors import UsageError
from regard.nn.context import Memory

Precision = Literal["full", "int8"]
SLACK = 4  # tokens of each beam that may be written until it is looked who is needed


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
        self._full = 0  # columns at which it is worth looking which of them are needed
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
        if self.own_BNM is not None:
            pos_BL = self._grow(pos_BL)
        start, self.columns = self.columns, self.columns + pos_BL.shape[1]
        self._pos_BM = _room(self._pos_BM, start, pos_BL.shape[1], 1, pos_BL, self.capacity, empty=-1)
        if pos_BL.shape[0] > self._pos_BM.shape[0]:
            self._pos_BM = self._pos_BM.expand(pos_BL.shape[0], -1).clone()
        self._pos_BM[:, start : self.columns] = pos_BL
        self._seen_BM = self._pos_BM if self.capacity is not None else self._pos_BM[:, : self.columns]

    def _grow(self, pos_BL: Tensor) -> Tensor:
        """Every row has new columns of its own; where they stand, those of a source one after the other."""
        assert self.own_BNM is not None
        new_NM = torch.eye(self.each, dtype=torch.bool, device=pos_BL.device)
        new_NM = new_NM.repeat_interleave(pos_BL.shape[1], 1)
        self.own_BNM = torch.cat([self.own_BNM, new_NM.expand(len(self.own_BNM), -1, -1)], -1)
        return pos_BL.repeat(1, self.each) if len(pos_BL) == 1 else pos_BL.reshape(len(self.own_BNM), -1)

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
        self._pos_BM = _room(before, self.columns, new, 1, before, None, empty=-1)
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
            made = make()
            self.slots[path] = Kept(self.pack(made), made[0].dtype)
            return made
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
                held_BNM = torch.ones(self.batch, 1, self.columns, dtype=torch.bool, device=index_N.device)
            self.own_BNM = held_BNM.flatten(0, 1).index_select(0, index_N).unflatten(0, (-1, each))
        for slot in self.slots.values():
            if not (isinstance(slot, Kept) or (tree and isinstance(slot, Every))):
                slot.pick(index_N)
            elif not unmoved:
                slot.pick(of_B)
        if self._pos_BM is not None and self._pos_BM.shape[0] > 1:
            self._pos_BM = self._pos_BM.index_select(0, of_B if tree else index_N)
        if self.memory is not None and not unmoved:
            self.memory = self.memory.pick(of_B)
        self.batch, self.each = len(index_N), each
        if tree and self.columns >= self._full:
            self._shed()

    def _shed(self) -> None:
        """Let go of the columns from which no row descends, if they are the most."""
        assert self.own_BNM is not None and self._pos_BM is not None
        live_BM = self.own_BNM.any(1)
        most = int(live_BM.sum(1).max())
        self._full = 2 * most + SLACK * self.each
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
        return given if self.precision == "full" else tuple(p for t in given for p in _bytes(t))

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


class Slot:
    """One address in the cache."""

    state: tuple[Tensor, ...] = ()

    def pick(self, index_N: Tensor) -> None:
        """Keep these rows, in this order."""
        self.state = tuple(t.index_select(0, index_N) for t in self.state)

    def reserve(self, new: int) -> None:
        """Make place for so many more columns, if it grows."""

    def check(self, next_B: Tensor, path: str) -> None:
        """Refuse, if it cannot go back to where the next positions are these."""
        raise UsageError(f"The state at {path!r} cannot be taken back: it keeps no history.")

    def rollback(self, next_B: Tensor) -> None:
        """Go back to where the next positions are these."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(t.numel() * t.element_size() for t in self.state)


class Kept(Slot):
    """Computed once, never changed: nothing to take back."""

    def __init__(self, state: tuple[Tensor, ...], dtype: torch.dtype) -> None:
        self.state, self.dtype = state, dtype

    def check(self, next_B: Tensor, path: str) -> None:
        """It does not depend on the tokens."""


class Swapped(Slot):
    """A state that each call replaces."""

    def __init__(self, state: tuple[Tensor, ...]) -> None:
        self.state = state


class Every(Slot):
    """All keys, a column each, in the order in which they came."""

    def __init__(self, cache: Cache, shared: bool = False) -> None:
        self.cache, self.shared = cache, shared
        self.other: tuple[Tensor, ...] = ()  # rows are moved from one pair of buffers to the other

    def pick(self, index_N: Tensor) -> None:
        """Keep these rows, in this order; columns not yet written are not moved."""
        if any(t.requires_grad for t in self.state):  # `out=` below has no gradient
            return super().pick(index_N)
        used = self.state[0].shape[2] if self.cache.capacity is not None else self.cache.columns
        shape = (len(index_N), *self.state[0].shape[1:])
        if not self.other or self.other[0].shape != shape:
            self.other = tuple(t.new_empty(len(index_N), *t.shape[1:]) for t in self.state)
        for old, new in zip(self.state, self.other, strict=True):
            torch.index_select(old[:, :, :used], 0, index_N, out=new[:, :, :used])
        self.state, self.other = self.other, self.state if self.state[0].shape == shape else ()

    def reserve(self, new: int) -> None:
        """Make place for so many more columns."""
        self.state = tuple(_room(t, self.cache.columns, new, 2, t, None) for t in self.state)

    def extend(self, k_BGMK: Tensor, v_BGMK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Write the new columns; return all that are in use (or all there are, if static)."""
        if self.cache.own_BNM is not None:
            k_BGMK, v_BGMK = (self._beside(t) for t in (k_BGMK, v_BGMK))
        end, new = self.cache.columns, k_BGMK.shape[2]
        given = self.cache.pack((k_BGMK, v_BGMK))
        pairs = zip(self.state or (None,) * len(given), given, strict=True)
        self.state = tuple(_room(s, end - new, new, 2, t, self.cache.capacity) for s, t in pairs)
        for room, t in zip(self.state, given, strict=True):
            room[:, :, end - new : end] = t
        if end == new:  # nothing before: what is new is all there is
            return k_BGMK, v_BGMK, self.cache.new_BL
        kept = self.state if self.cache.capacity is not None else tuple(t[:, :, :end] for t in self.state)
        k, v = self.cache.unpack(kept, k_BGMK.dtype)
        assert self.cache.seen_BM is not None
        return k, v, self.cache.seen_BM

    def shed(self, kept_BM: Tensor) -> None:
        """Only these columns of each row, in this order, which is that of before."""
        for t in self.state:
            (B, G, M, _), (_, used) = t.shape, kept_BM.shape
            first_BG = torch.arange(B * G, device=t.device).view(B, G) * M
            index_BGM = first_BG[..., None] + kept_BM[:, None]
            t[:, :, :used] = t.flatten(0, 2).index_select(0, index_BGM.flatten()).view(B, G, used, -1)

    def _beside(self, t_NGMK: Tensor) -> Tensor:
        """Columns of the rows of one source, one after the other."""
        t_BGMK: Tensor = t_NGMK.unflatten(0, (-1, self.cache.each)).transpose(1, 2).flatten(2, 3)
        return t_BGMK

    def check(self, next_B: Tensor, path: str) -> None:
        """Nothing is ever lost: the cache's own positions say what is there."""

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        part = 1.0 if self.cache.capacity is not None else self.cache.columns / self.state[0].shape[2]
        return round(part * super().nbytes)


class Ring(Slot):
    """The keys within reach of each row, and some to spare.

    The key at position p stands in column p mod size. One more column takes what is padded and is never seen.
    """

    def __init__(self, cache: Cache, reach: int) -> None:
        self.cache, self.reach, self.size = cache, reach, reach + cache.spare
        if cache.capacity is not None:
            self.size = min(self.size, cache.capacity)
        self.pos_BM: Tensor | None = None

    def extend(self, k_BGMK: Tensor, v_BGMK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what was there and what is new; then let the new overwrite the oldest."""
        B, L = k_BGMK.shape[0], k_BGMK.shape[2]
        pos_BL, given = self.cache.new_BL.expand(B, L), self.cache.pack((k_BGMK, v_BGMK))
        if self.pos_BM is None:
            self.pos_BM = pos_BL.new_full((B, self.size + 1), -1)
            self.state = tuple(t.new_zeros(B, t.shape[1], self.size + 1, t.shape[3]) for t in given)
            self._write(given, pos_BL)
            return k_BGMK, v_BGMK, self.cache.new_BL
        if L == 1:  # the key it overwrites is out of reach
            self._write(given, pos_BL)
            return self._view(k_BGMK.dtype)
        k, v, j = self._view(k_BGMK.dtype)
        both = torch.cat([k, k_BGMK], 2), torch.cat([v, v_BGMK], 2), torch.cat([j, pos_BL], 1)
        self._write(given, pos_BL)
        return both

    def _view(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        assert self.pos_BM is not None
        k, v = self.cache.unpack(tuple(t[:, :, : self.size] for t in self.state), dtype)
        return k, v, self.pos_BM[:, : self.size]

    def _write(self, given: tuple[Tensor, ...], pos_BL: Tensor) -> None:
        assert self.pos_BM is not None
        last_B1 = pos_BL.amax(1, keepdim=True)
        live_BL = (pos_BL >= 0) & (pos_BL > last_B1 - self.size)
        column_BL = torch.where(live_BL, pos_BL % self.size, self.size)
        self.pos_BM.scatter_(1, column_BL, torch.where(live_BL, pos_BL, -1))
        for room, t in zip(self.state, given, strict=True):
            index = column_BL[:, None, :, None].expand(-1, t.shape[1], -1, t.shape[3])
            room.scatter_(2, index, t)

    def pick(self, index_N: Tensor) -> None:
        """Keep these rows, in this order."""
        super().pick(index_N)
        if self.pos_BM is not None:
            self.pos_BM = self.pos_BM.index_select(0, index_N)

    def check(self, next_B: Tensor, path: str) -> None:
        """Refuse, if a key that would be seen again has been overwritten."""
        assert self.pos_BM is not None
        next_B1 = next_B[:, None]
        first_B1 = (next_B1 - self.reach + 1).clamp(min=0)
        held_B1 = ((self.pos_BM >= first_B1) & (self.pos_BM < next_B1)).sum(1, keepdim=True)
        if bool((held_B1 < next_B1 - first_B1).any()):
            raise UsageError(
                f"The window at {path!r} has let go of keys that would be needed again: `spare`, "
                f"the most that can be taken back, is {self.cache.spare}; make the cache with a larger one."
            )

    def rollback(self, next_B: Tensor) -> None:
        """Forget positions at or beyond the next one."""
        assert self.pos_BM is not None
        self.pos_BM.masked_fill_(self.pos_BM >= next_B[:, None], -1)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns that can be seen; the column for padding is not counted."""
        used = self.size if self.cache.capacity is not None else min(self.size, self.cache.length)
        return round(super().nbytes * used / (self.size + 1))


class Placed(Slot):
    """Keys in columns that whoever writes them chooses; a column may be written again.

    Who reads must never look at a column that is not yet written: then there is nothing to take back. One
    more column, the first, takes what is written nowhere.
    """

    def __init__(self, cache: Cache) -> None:
        self.cache, self.columns = cache, 0

    def place(self, k_BGMK: Tensor, v_BGMK: Tensor, column_BM: Tensor, columns: int) -> tuple[Tensor, Tensor]:
        """Write, then return all columns."""
        held, self.columns = self.columns, columns
        given = self.cache.pack((k_BGMK, v_BGMK))
        pairs = zip(self.state or (None,) * len(given), given, strict=True)
        self.state = tuple(_room(s, held + 1, columns - held, 2, t, None) for s, t in pairs)
        for room, t in zip(self.state, given, strict=True):
            room.scatter_(2, (column_BM + 1)[:, None, :, None].expand_as(t), t)
        k, v = self.cache.unpack(tuple(t[:, :, 1 : columns + 1] for t in self.state), k_BGMK.dtype)
        return k, v

    def check(self, next_B: Tensor, path: str) -> None:
        """Nothing is ever lost."""

    @property
    def nbytes(self) -> int:
        """Bytes of the columns that may be read."""
        return round(super().nbytes * self.columns / self.state[0].shape[2])


def _room(
    held: Tensor | None, used: int, new: int, axis: int, like: Tensor, capacity: int | None, empty: int = 0
) -> Tensor:
    """A buffer with place for `new` more columns along `axis`; it doubles, so that growing costs little."""
    if held is not None and (capacity is not None or used + new <= held.shape[axis]):
        return held
    columns = capacity if capacity is not None else max(used + new, 2 * used, 64)
    shape = list((like if held is None else held).shape)
    shape[axis] = columns
    room = like.new_full(shape, empty)
    if held is not None:
        room.narrow(axis, 0, used).copy_(held.narrow(axis, 0, used))
    return room


def _in_order(index_N: Tensor, count: int) -> bool:
    """Whether these are 0 .. count - 1."""
    return len(index_N) == count and torch.equal(index_N, torch.arange(count, device=index_N.device))


def _bytes(t: Tensor) -> tuple[Tensor, Tensor]:
    """Each vector as whole numbers from -127 to 127, and what to multiply them by."""
    if not t.is_floating_point():  # whole numbers already: the buckets of a hash stay what they are
        return t, t[..., :0]
    scale = (t.abs().amax(-1, keepdim=True) / 127).to(torch.bfloat16)
    least = torch.finfo(torch.bfloat16).tiny  # a vector of zeros stays one
    return (t / scale.to(t.dtype).clamp(min=least)).round().clamp(-127, 127).to(torch.int8), scale
