"""The few numbers every part may need."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from regard.errors import UsageError


@dataclass(frozen=True)
class Dims:
    """Width of the stream, heads, layers, longest sequence, width of one head.

    A part gets its parent's numbers; a recipe may change a few of them for itself and what is below it
    (`dims: {layers: 3}`). `head` is width / heads unless it is given.
    """

    width: int
    heads: int = 1
    layers: int = 1
    length: int = 1024
    head: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "head" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"dims.{field.name} must be a whole number of at least 1, but is {value!r}.")
        if self.head is None and self.width % self.heads:
            raise UsageError(
                f"dims.heads must divide dims.width, but {self.heads} heads do not divide {self.width}; "
                "choose other numbers, or give dims.head, the width of one head."
            )

    @property
    def size(self) -> int:
        """The width of one head: `head` if given, else width / heads."""
        return self.head or self.width // self.heads

    def but(self, **changes: int | None) -> Dims:
        """The same numbers with a few changed: `dims.but(layers=3)`."""
        return replace(self, **changes)  # type: ignore[arg-type]
