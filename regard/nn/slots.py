"""The addresses of a cache: what is kept at each, how it grows, is moved, and is taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.errors import UsageError
from regard.native import can_move, can_place, move_rows, place_rows

if TYPE_CHECKING:
    from regard.nn.cache import Cache


class Slot:
    """One address in the cache."""

    state: tuple[Tensor, ...] = ()

    @property
    def used(self) -> int | None:
        """Columns in use; None: all."""
        return None

    def pick(self, index_N: Tensor) -> None:
        """Keep these rows, in this order."""
        self.state = tuple(t.index_select(0, index_N) for t in self.state)

    def fill(self, index_N: Tensor, moved_M: Tensor) -> None:
        """The same where only these of the rows stand elsewhere now: they are written over those that go."""
        from_M = index_N[moved_M]
        apart = bool((from_M >= len(index_N)).all())  # nobody is written over who has yet to be read
        for t in self.state:
            if apart and can_move(t):
                move_rows(t, moved_M, from_M, t.shape[2] if self.used is None else self.used)
            else:
                t[moved_M, :, : self.used] = t[from_M, :, : self.used]
        self.state = tuple(t[: len(index_N)] for t in self.state)

    def join(self, other: Slot, held: int, theirs: int) -> None:
        """Let the rows of another slot of its kind stand behind its own; so many columns of each are used."""
        raise NotImplementedError

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

    def join(self, other: Slot, held: int, theirs: int) -> None:
        """Sources of another length are filled up: the memory says which columns are none."""
        pairs = zip(self.state, other.state, strict=True)
        self.state = tuple(behind(a[:, :, :held], b[:, :, :theirs]) for a, b in pairs)

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

    @property
    def used(self) -> int | None:
        """Columns written so far, or all, if static."""
        return None if self.cache.capacity is not None else self.cache.columns

    def pick(self, index_N: Tensor) -> None:
        """Keep these rows, in this order; columns not yet written are not moved."""
        if any(t.requires_grad for t in self.state):  # `out=` below has no gradient
            return super().pick(index_N)
        used = self.used
        shape = (len(index_N), *self.state[0].shape[1:])
        if not self.other or self.other[0].shape != shape:
            self.other = tuple(t.new_empty(len(index_N), *t.shape[1:]) for t in self.state)
        for old, new in zip(self.state, self.other, strict=True):
            torch.index_select(old[:, :, :used], 0, index_N, out=new[:, :, :used])
        self.state, self.other = self.other, self.state if self.state[0].shape == shape else ()

    def join(self, other: Slot, held: int, theirs: int) -> None:
        """What is missing is filled up: the cache's own positions say what is there."""
        pairs, room = zip(self.state, other.state, strict=True), 2 * max(held, theirs)
        columns = self.state[0].shape[2]
        self.state = tuple(behind(a[:, :, :held], b[:, :, :theirs], room, columns) for a, b in pairs)
        self.other = ()

    def reserve(self, new: int) -> None:
        """Make place for so many more columns."""
        self.state = tuple(grown(t, self.cache.columns, new, 2, t, None) for t in self.state)

    def extend(self, k_BGMK: Tensor, v_BGMK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Write the new columns; return all that are in use (or all there are, if static)."""
        given = self.cache.pack((k_BGMK, v_BGMK))
        if self.cache.place_BM is not None:
            return self._place(given, self.cache.place_BM, k_BGMK.dtype)
        end, new = self.cache.columns, k_BGMK.shape[2]
        pairs = zip(self.state or (None,) * len(given), given, strict=True)
        self.state = tuple(grown(s, end - new, new, 2, t, self.cache.capacity) for s, t in pairs)
        for room, t in zip(self.state, given, strict=True):
            room[:, :, end - new : end] = t
        if end == new:  # nothing before: what is new is all there is
            k, v = self.cache.unpack(given, k_BGMK.dtype)
            return k, v, self.cache.new_BL
        return self._all(k_BGMK.dtype)

    def _place(
        self, given: tuple[Tensor, ...], place_BM: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same for beams, which write where nobody of their source descends from what stands there."""
        end, more = self.cache.columns, self.cache.columns - self.cache.before
        self.state = tuple(grown(t, self.cache.before, more, 2, t, None) for t in self.state)
        for room, t in zip(self.state, given, strict=True):
            if more > 0:  # not every source fills them, and what is no number would spoil a sum
                room[:, :, self.cache.before : end] = 0
            new_BMGK = t.unflatten(0, (len(place_BM), -1)).transpose(2, 3).flatten(1, 2)
            if can_place(room, new_BMGK):
                place_rows(room, new_BMGK, place_BM)
            else:
                row_B1 = torch.arange(len(place_BM), device=place_BM.device)[:, None]
                room[row_B1, :, place_BM] = new_BMGK
        return self._all(dtype)

    def _all(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """All that is in use, as it is read."""
        k, v = self.cache.unpack(tuple(t[:, :, : self.used] for t in self.state), dtype)
        assert self.cache.seen_BM is not None
        return k, v, self.cache.seen_BM

    def shed(self, kept_BM: Tensor) -> None:
        """Only these columns of each row, in this order, which is that of before."""
        for t in self.state:
            (B, G, M, _), (_, used) = t.shape, kept_BM.shape
            first_BG = torch.arange(B * G, device=t.device).view(B, G) * M
            index_BGM = first_BG[..., None] + kept_BM[:, None]
            t[:, :, :used] = t.flatten(0, 2).index_select(0, index_BGM.flatten()).view(B, G, used, -1)

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
        new = self.cache.unpack(given, k_BGMK.dtype)  # as they will be read later
        if self.pos_BM is None:
            self.pos_BM = pos_BL.new_full((B, self.size + 1), -1)
            self.state = tuple(t.new_zeros(B, t.shape[1], self.size + 1, t.shape[3]) for t in given)
            self._write(given, pos_BL)
            return new[0], new[1], self.cache.new_BL
        if L == 1:  # the key it overwrites is out of reach
            self._write(given, pos_BL)
            return self._view(k_BGMK.dtype)
        k, v, j = self._view(k_BGMK.dtype)
        both = torch.cat([k, new[0]], 2), torch.cat([v, new[1]], 2), torch.cat([j, pos_BL], 1)
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
        self.state = tuple(grown(s, held + 1, columns - held, 2, t, None) for s, t in pairs)
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


def behind(a_BGMK: Tensor, b_BGMK: Tensor, room: int = 0, columns: int = 0) -> Tensor:
    """The rows of both, with zeros where one has fewer columns: in a's own buffer, if rows have left it and
    it has place, up to so many `columns`; else in a larger one with place for `room` of them.
    """
    (mine, _, held, _), (theirs, used) = a_BGMK.shape, b_BGMK.shape[:3:2]
    both, most, whole = mine + theirs, max(held, used), a_BGMK._base
    fits = whole is not None and whole.data_ptr() == a_BGMK.data_ptr() and whole.stride() == a_BGMK.stride()
    if whole is None or not fits or len(whole) < both or whole.shape[2] < most:
        return stacked(a_BGMK, b_BGMK, 2, room=room)
    whole[mine:both, :, :used] = b_BGMK
    whole[mine:both, :, used:held] = 0
    whole[:mine, :, held:used] = 0
    return whole[:both, :, : max(most, columns)]


def grown(
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


def stacked(a: Tensor, b: Tensor, axis: int, empty: int = 0, room: int = 0) -> Tensor:
    """The rows of both; along `axis`, what one of them lacks is `empty`, and there is place for `room`,
    where nothing is written yet.
    """
    shape = list(a.shape)
    shape[0], shape[axis] = len(a) + len(b), max(a.shape[axis], b.shape[axis], room)
    both, most = a.new_empty(shape), max(a.shape[axis], b.shape[axis])
    for rows, t in ((both[: len(a)], a), (both[len(a) :], b)):
        rows.narrow(axis, 0, t.shape[axis]).copy_(t)
        rows.narrow(axis, t.shape[axis], most - t.shape[axis]).fill_(empty)
    return both


def in_bytes(t: Tensor) -> tuple[Tensor, Tensor]:
    """Each vector as whole numbers from -127 to 127, and what to multiply them by."""
    if not t.is_floating_point():  # whole numbers already: the buckets of a hash stay what they are
        return t, t[..., :0]
    scale = (t.abs().amax(-1, keepdim=True) / 127).to(torch.bfloat16)
    least = torch.finfo(torch.bfloat16).tiny  # a vector of zeros stays one
    return (t / scale.to(t.dtype).clamp(min=least)).round().clamp(-127, 127).to(torch.int8), scale
