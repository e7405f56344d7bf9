"""Characters as tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from regard.data.tokens.codec import Codec, Listed
from regard.data.tokens.tokens import Tokens
from regard.errors import DataError
from regard.spec import part


@part
class Chars(Tokens):
    """Every character of the training text is a token, in the order of their code points.

    A text of known characters comes back exactly. An unknown one is <unk> if that is among the special
    tokens, and an error otherwise.
    Karpathy 2015, "The unreasonable effectiveness of recurrent neural networks".
    """

    def __init__(self) -> None:
        super().__init__()

    def learn(self, lines: Iterable[str], specials: list[str], last: int) -> Codec:
        """All characters that occur."""
        found: set[str] = set()
        for line in lines:
            found.update(line)
        if not found:
            raise DataError("the vocabulary must be learned from some text, but there was none.")
        return Listed(sorted(found), specials, last, spaced=False)

    def restore(
        self, state: Mapping[str, Any], files: Mapping[str, bytes], specials: list[str], last: int
    ) -> Codec:
        """The same again."""
        texts = [str(text) for text in state["texts"]]
        if any(len(text) != 1 for text in texts) or len(set(texts)) < len(texts):
            raise ValueError("texts must be different single characters.")
        return Listed(texts, specials, last, spaced=False)
