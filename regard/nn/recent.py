"""What came just before: memory over segments."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.errors import UsageError
from regard.nn.cache import Cache
from regard.nn.slots import Slot


class Recent(Cache):
    r"""The last tokens before a call, and no more: a text is read segment by segment, a call each.

        h~ = [SG(h_{t-M}), ..., SG(h_{t-1}); h_t, ..., h_{t+L-1}],   q = h W^Q,   k = h~ W^K,   v = h~ W^V

    with h the layer's input and SG without gradient: a token of this segment sees, as far as the pattern
    allows, the segment up to itself and the M tokens before it. Dai et al. 2019 (Transformer-XL), section
    3.2, https://arxiv.org/abs/1901.02860. Layer n looks at what layer n - 1 said of the segment before, so
    that N layers reach back N x M tokens.

    Of each token it keeps keys and values; or, with `states`, what the layers read, for whoever asks by
    `recall`. While weights stand still, both give the same answers, and keys and values are cheaper, because
    nothing is computed twice. While weights are learned, states are right: keys and values are made anew by
    the weights of now, and W^K and W^V learn from the memory too. So training carries states, and evaluation
    keys and values.

    That every query sees equally far (`same_length` in the reference code) is a pattern: a window. Tokens are
    counted, not columns: padding takes no place in the memory. The same call may be made again before the
    next one begins (activations that are computed twice): the memory moves on when the next one does.

    Differs from the paper: in pre-norm blocks a layer's input is what its norm let through; the reference
    code keeps it before the norm and normalises it anew.

    Options:
      batch: rows
      memory: M; None keeps all
      states: keep what the layers read, not keys and values
    """

    def __init__(self, batch: int, memory: int | None = None, states: bool = False) -> None:
        super().__init__(batch)
        if memory is not None and memory < 0:
            raise UsageError(f"memory must be a number of tokens, but is {memory}.")
        self.keep, self.states = memory, states
        self._next_B: Tensor | None = None  # where the rows go on, once they differ

    @property
    def next_B(self) -> Tensor:
        """The position that the next token of each row will have."""
        return torch.full((self.batch,), self.length) if self._next_B is None else self._next_B

    def begin(self, pos_BL: Tensor, plain: bool) -> None:
        """A call starts: what the one before it left is the memory now."""
        for slot in self.slots.values():
            if isinstance(slot, Last):
                slot.settle()
        if not plain:
            after_B = torch.where(pos_BL >= 0, pos_BL + 1, 0).amax(1).expand(self.batch)
            self._next_B = torch.maximum(self.next_B.to(pos_BL.device), after_B)
        self.plain = self.plain and plain
        self._new_BL, self.length = pos_BL, self.length + pos_BL.shape[1]

    def extend(
        self, path: str, k_BGMK: Tensor, v_BGMK: Tensor, reach: int | None = None, shared: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The keys and values in memory and the new ones, with their positions."""
        (old_k, old_v), j_BM = self._look(path, (k_BGMK, v_BGMK), reach)
        if not j_BM.shape[1]:
            return k_BGMK, v_BGMK, self.new_BL
        return torch.cat([old_k, k_BGMK], 2), torch.cat([old_v, v_BGMK], 2), joined(j_BM, self.new_BL)

    def place(
        self, path: str, k_BGMK: Tensor, v_BGMK: Tensor, column_BM: Tensor, columns: int
    ) -> tuple[Tensor, Tensor]:
        """Folded keys stand for many tokens, and cannot be let go of one by one."""
        raise UsageError(
            f"The keys that are folded at {path!r} cannot be carried from segment to segment; "
            "leave `compress` out, or `memory`."
        )

    def recall(self, path: str, x_BLD: Tensor, reach: int | None = None) -> tuple[Tensor, Tensor] | None:
        """What the layer read of the tokens in memory, and where they stand; then keep what it reads now."""
        if not self.states:
            return None
        (old_BMD,), j_BM = self._look(path, (x_BLD,), reach)
        return old_BMD, j_BM

    def swap(self, path: str, new: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """The state of a recurrent or convolutional part, for whoever does not learn from it."""
        if self.states:
            raise UsageError(
                f"What the part at {path!r} keeps cannot be carried from segment to segment in training; "
                "leave the part out, or train without `memory`."
            )
        return super().swap(path, new)

    def _look(
        self, path: str, new: tuple[Tensor, ...], reach: int | None
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        slot = self.slots.setdefault(path, Last())
        assert isinstance(slot, Last)
        keep = self.keep if reach is None else min(reach - 1, self.keep if self.keep is not None else reach)
        return slot.look(tuple(t.detach() for t in new), self.new_BL, keep)

    def reorder(self, index_N: Tensor, sources_B: Tensor | None = None) -> None:
        """Keep these rows, in this order."""
        super().reorder(index_N, sources_B)
        if self._next_B is not None:
            self._next_B = self._next_B.index_select(0, index_N)

    def rollback(self, count: int) -> None:
        """Nothing can be taken back: what a token pushed out of the memory is gone."""
        if count:
            raise UsageError(
                "A memory over segments cannot be taken back, because it lets go of what is old; "
                "write with a plain cache: model.cache(batch)."
            )

    # ---- rows in and out, for checkpoints

    def take(self) -> dict[str, Tensor]:
        """All that is kept, row by row: put into an empty memory by `put`, it goes on as if never stopped."""
        found = {"next": self.next_B}
        for path, slot in self.slots.items():
            assert isinstance(slot, Last)
            slot.settle()
            found |= {f"{path}/{n}": t for n, t in enumerate(slot.state)}
            found[f"{path}/pos"] = slot.pos_BM.expand(self.batch, -1)
        return found

    def put(self, rows: dict[str, Tensor]) -> None:
        """Go on from what `take` gave, or from some of its rows."""
        next_B = rows["next"]
        self.plain = bool((next_B == next_B[0]).all())
        self.length, self._next_B = int(next_B.max()), None if self.plain else next_B
        for path in sorted(name.removesuffix("/pos") for name in rows if name.endswith("/pos")):
            slot = self.slots[path] = Last()
            slot.pos_BM, count = rows[f"{path}/pos"], sum(name.startswith(f"{path}/") for name in rows) - 1
            slot.state = tuple(rows[f"{path}/{n}"] for n in range(count))
            if self.plain:
                slot.pos_BM = slot.pos_BM[:1]


class Last(Slot):
    """The last tokens of each row; what is kept of them is `state`, tokens along its axis before last."""

    def __init__(self) -> None:
        self.pos_BM = torch.zeros(1, 0, dtype=torch.long)
        self.then: tuple[tuple[Tensor, ...], Tensor] | None = None

    def look(
        self, new: tuple[Tensor, ...], pos_BL: Tensor, keep: int | None
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """What was kept before this call, and where; what the next call shall see is made ready."""
        if not self.state:
            self.state, self.pos_BM = tuple(t[..., :0, :] for t in new), pos_BL[:, :0]
        j_BM = joined(self.pos_BM, pos_BL)
        first = 0 if keep is None else max(0, j_BM.shape[1] - keep)
        if len(j_BM) > 1:  # padding, wherever it stood, goes first, so that tokens are the last columns
            order_BM = j_BM.argsort(dim=1, stable=True)
            both, j_BM = (_sorted(t, order_BM) for t in _cat(self.state, new)), j_BM.gather(1, order_BM)
            self.then = tuple(t[..., first:, :].clone() for t in both), j_BM[:, first:]
        else:
            self.then = _cat(self.state, new, first), j_BM[:, first:]
        return self.state, self.pos_BM

    def settle(self) -> None:
        """The call is over: what it left is what is kept."""
        if self.then is not None:
            (self.state, self.pos_BM), self.then = self.then, None

    def pick(self, index_N: Tensor) -> None:
        """Keep these rows, in this order."""
        self.settle()
        super().pick(index_N)
        if len(self.pos_BM) > 1:
            self.pos_BM = self.pos_BM.index_select(0, index_N)

    @property
    def nbytes(self) -> int:
        """Bytes that the next call will find."""
        kept = self.state if self.then is None else self.then[0]
        return sum(t.numel() * t.element_size() for t in kept)


def joined(j_BM: Tensor, pos_BL: Tensor) -> Tensor:
    """Positions side by side; one row for all where both have one."""
    rows = max(len(j_BM), len(pos_BL))
    return torch.cat([j_BM.expand(rows, -1), pos_BL.expand(rows, -1)], 1)


def _cat(old: tuple[Tensor, ...], new: tuple[Tensor, ...], first: int = 0) -> tuple[Tensor, ...]:
    """One behind the other, from the column `first` on."""
    held = old[0].shape[-2]
    pairs = ((a[..., first:, :], b[..., max(0, first - held) :, :]) for a, b in zip(old, new, strict=True))
    return tuple(torch.cat(pair, -2) for pair in pairs)


def _sorted(t: Tensor, order_BM: Tensor) -> Tensor:
    """Tokens of each row in a new order, whatever stands between row and token."""
    index = order_BM.view(len(order_BM), *[1] * (t.ndim - 3), -1, 1).expand(t.shape)
    return t.gather(-2, index)
