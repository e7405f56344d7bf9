"""Which keys a query may see: S_i as a predicate on positions, so that a cache changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from regard.dims import Dims
from regard.errors import UsageError
from regard.spec import Recipe, part

if TYPE_CHECKING:
    from regard.nn.context import Context
    from regard.nn.pattern.lanes import Lanes


class Pattern:
    """A set of keys S_i for each query i.

    causal   a query never sees what comes after it
    reach    a query never sees a key that lies `reach` or more positions back; None: no such bound
    by_head  heads differ in what they see
    prefixed what is given first is read in both directions, as far as each row says
    """

    causal: bool = False
    reach: int | None = None
    by_head: bool = False
    prefixed: bool = False

    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        """True where the query at position i may see the key at position j; i and j broadcast."""
        raise NotImplementedError

    def sees(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The same for one query and one key, of row b and head h: what FlexAttention asks."""
        return self(i, j)

    def amounts_to(self, length: int) -> Literal["causal", "full"] | None:
        """What this is when keys stand at 0 .. length - 1 and nothing is padded; None: needs a mask."""
        return None

    def keys(self, block: int, count: int) -> Tensor | None:
        """For each of `count` blocks of queries, the blocks of keys it may need: (count, S), -1 for none.

        None: all.
        """
        return None

    def split(self) -> tuple[Pattern | None, Lanes] | None:
        """For keys that lie far apart: those that sorting into lanes brings together, and the rest.

        The rest is given as a pattern that names the blocks in which it lies; None: there is no rest.
        """
        return None

    def head(self, h: int) -> Pattern:
        """The pattern of head h, where heads differ."""
        return self

    def bind(self, ctx: Context) -> Pattern:
        """The pattern for this batch, where it depends on it."""
        return self

    def __and__(self, other: Pattern) -> Pattern:
        return AllOf.join([self, other])

    def __or__(self, other: Pattern) -> Pattern:
        return AnyOf.join([self, other])

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *(v if not isinstance(v, list) else tuple(v) for v in vars(self).values())))

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({inner})"


class Joined(Pattern):
    """Several patterns as one."""

    patterns: list[Pattern]

    def __init__(self, dims: Dims, patterns: list[Recipe[Pattern]]) -> None:
        self._set([recipe.build(dims) for recipe in patterns])

    @classmethod
    def join(cls, patterns: Sequence[Pattern]) -> Pattern:
        """From patterns that are already built."""
        joined = cls.__new__(cls)
        joined._set(list(patterns))
        return joined

    def _set(self, patterns: list[Pattern]) -> None:
        if not patterns:
            raise UsageError(
                f"{type(self).__name__} must be given at least one pattern, but the list is empty."
            )
        self.patterns = patterns
        self.by_head = any(p.by_head for p in patterns)
        self.prefixed = any(p.prefixed for p in patterns)

    def bind(self, ctx: Context) -> Pattern:
        """Each of them for this batch."""
        bound = [p.bind(ctx) for p in self.patterns]
        return self if all(a is b for a, b in zip(bound, self.patterns, strict=True)) else self.join(bound)

    def head(self, h: int) -> Pattern:
        """Each of them as head h has it."""
        return self.join([p.head(h) for p in self.patterns]) if self.by_head else self

    def _keys(self, block: int, count: int) -> list[Tensor | None]:
        return [p.keys(block, count) for p in self.patterns]


@part
class AllOf(Joined):
    """Keys that every one of the patterns allows: the intersection of their sets."""

    def _set(self, patterns: list[Pattern]) -> None:
        super()._set(patterns)
        self.causal = any(p.causal for p in patterns)
        self.reach = min((p.reach for p in patterns if p.reach is not None), default=None)

    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        return reduce(torch.logical_and, (p(i, j) for p in self.patterns))

    def sees(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """All of them."""
        return reduce(torch.logical_and, (p.sees(b, h, i, j) for p in self.patterns))

    def keys(self, block: int, count: int) -> Tensor | None:
        """Those of the pattern that needs the fewest."""
        return min(
            (k for k in self._keys(block, count) if k is not None), key=lambda k: k.shape[1], default=None
        )


class Either(Joined):
    """What holds for a union and for heads that differ: the bounds are those of the widest."""

    def _set(self, patterns: list[Pattern]) -> None:
        super()._set(patterns)
        self.causal = all(p.causal for p in patterns)
        reaches = [p.reach for p in patterns]
        self.reach = None if None in reaches else max(r for r in reaches if r is not None)

    def keys(self, block: int, count: int) -> Tensor | None:
        """All blocks that any of them names, each once."""
        found = self._keys(block, count)
        if any(k is None for k in found):
            return None
        return named(set(row) - {-1} for row in torch.cat([k for k in found if k is not None], 1).tolist())


@part
class AnyOf(Either):
    """Keys that at least one of the patterns allows: the union of their sets."""

    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        return reduce(torch.logical_or, (p(i, j) for p in self.patterns))

    def split(self) -> tuple[Pattern | None, Lanes] | None:
        """The lanes of the first that has some; all others are the rest."""
        for n, pattern in enumerate(self.patterns):
            if (parts := pattern.split()) is not None:
                rest = [*self.patterns[:n], *([parts[0]] if parts[0] else []), *self.patterns[n + 1 :]]
                return (self.join(rest) if rest else None), parts[1]
        return None

    def sees(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Any of them."""
        return reduce(torch.logical_or, (p.sees(b, h, i, j) for p in self.patterns))


@part
class PerHead(Either):
    """Head h sees by the pattern h modulo their number. Child et al. 2019, section 4.2, https://arxiv.org/abs/1904.10509."""

    def __init__(self, dims: Dims, patterns: list[Recipe[Pattern]]) -> None:
        super().__init__(dims, patterns)
        self.heads = dims.heads

    def _set(self, patterns: list[Pattern]) -> None:
        super()._set(patterns)
        self.by_head = True

    @classmethod
    def join(cls, patterns: Sequence[Pattern]) -> Pattern:
        """As many heads as patterns."""
        joined = super().join(patterns)
        joined.heads = len(patterns)  # type: ignore[attr-defined]
        return joined

    def bind(self, ctx: Context) -> Pattern:
        """Each of them for this batch, and as many heads as before."""
        bound = super().bind(ctx)
        bound.heads = self.heads  # type: ignore[attr-defined]
        return bound

    def head(self, h: int) -> Pattern:
        """The h-th, in turn."""
        return self.patterns[h % len(self.patterns)].head(h)

    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        """(B, H, L, M) from positions (B, 1, L, 1) and (B, 1, 1, M)."""
        each = [self.head(h)(i, j) for h in range(self.heads)]
        return torch.cat(torch.broadcast_tensors(*each), 1)

    def sees(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """By the pattern of head h."""
        turns = ((h % len(self.patterns) == n, p.sees(b, h, i, j)) for n, p in enumerate(self.patterns))
        return reduce(torch.logical_or, (mine & seen for mine, seen in turns))


def named(rows: Iterable[Iterable[int]]) -> Tensor:
    """Blocks named for each block of queries, as `Pattern.keys` gives them: (count, S), -1 for none."""
    sorts = [sorted(row) for row in rows]
    width = max(map(len, sorts))
    return torch.tensor([[-1] * (width - len(row)) + row for row in sorts])
