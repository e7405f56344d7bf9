"""Bytes as tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from regard.data.tokens.codec import Bytes256, Codec
from regard.data.tokens.tokens import Tokens
from regard.spec import part


@part
class Bytes(Tokens):
    """Every byte of the UTF-8 text is a token: 256 of them, nothing to learn, nothing unknown.

        id = byte + number of special tokens

    Any text comes back exactly.
    Al-Rfou et al. 2019, arXiv 1808.04444; ByT5, Xue et al. 2022, arXiv 2105.13626.
    """

    def __init__(self) -> None:
        super().__init__()
        self._use(Bytes256([], 0))

    def learn(self, lines: Iterable[str], specials: list[str], last: int) -> Codec:
        """Only the special tokens move the ids; the lines are not read."""
        return Bytes256(specials, last)

    def restore(
        self, state: Mapping[str, Any], files: Mapping[str, bytes], specials: list[str], last: int
    ) -> Codec:
        """The same again."""
        return Bytes256(specials, last)
