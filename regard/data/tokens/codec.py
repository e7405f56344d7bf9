"""What tokens have learned: a numbered vocabulary, and the way from text to numbers and back.

    0 .. n-1                     the special tokens, in the order they were asked for
    n .. size-last-1             the vocabulary itself
    size-last .. size-1          sentinels, counting down: <extra_id_0> is the very last (T5's convention)

A special token is never found in text: the text "<s>" becomes the letters of "<s>".
"""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from regard.errors import DataError, UsageError

UNKNOWN = ("<unk>", "[UNK]")
"""Names of the special token that stands for what is not in the vocabulary, where there is one."""

SENTINEL = "<extra_id_"
"""How the names of sentinels begin."""

CLOSING = frozenset(".,;:!?)]}%'\u2019\u201d\u00bb\u2026\u3002\u3001")
OPENING = frozenset("([{\u201e\u00ab\u00bf\u00a1")


LARGEST = 200 * 2**20
"""Bytes a file of tokens may have."""


def contents(path: Path) -> bytes:
    """The bytes of a file of tokens, which may not be endless."""
    if path.stat().st_size > LARGEST:
        raise DataError(f"{path}: tokens may take {LARGEST} bytes, but this file has {path.stat().st_size}.")
    return path.read_bytes()


def marks(specials: Sequence[str], size: int, last: int) -> dict[str, int]:
    """The ids of special tokens and sentinels in a vocabulary of `size`."""
    sentinels = {f"{SENTINEL}{k}>": size - 1 - k for k in range(last)}
    return {name: n for n, name in enumerate(specials)} | sentinels


class Codec(ABC):
    """A learned vocabulary. `marks` has the ids of special tokens and sentinels, `size` counts everything."""

    size: int
    marks: dict[str, int]

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of a text."""

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts; quicker than one by one, where that can be."""
        return list(map(self.encode, texts))

    @abstractmethod
    def adds(self, before: int | None, token: int) -> bytes:
        """What this id adds to the text, as UTF-8 (perhaps a part of a character), after the id before it."""

    @abstractmethod
    def continues(self, token: int) -> bool:
        """Whether this id goes on with the word of the id before it."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What must be saved as JSON to make it again."""

    def files(self) -> dict[str, bytes]:
        """Further files to be saved, by name."""
        return {}

    @property
    def unknown(self) -> int | None:
        """The id for what is not in the vocabulary, if there is one."""
        return next((self.marks[name] for name in UNKNOWN if name in self.marks), None)


class Bytes256(Codec):
    """Every byte of UTF-8 is a token."""

    def __init__(self, specials: Sequence[str], last: int) -> None:
        self.shift = len(specials)
        self.size = self.shift + 256 + last
        self.marks = marks(specials, self.size, last)

    def encode(self, text: str) -> list[int]:
        shift = self.shift
        return [byte + shift for byte in utf8(text)]

    def adds(self, before: int | None, token: int) -> bytes:
        return bytes((token - self.shift,))

    def continues(self, token: int) -> bool:
        return not self.adds(None, token).isspace()

    def state(self) -> dict[str, Any]:
        return {}


class Listed(Codec):
    """A list of texts, each a token: characters, or words that are written with spaces between them."""

    def __init__(self, texts: Iterable[str], specials: Sequence[str], last: int, spaced: bool) -> None:
        self.texts = list(texts)
        self.size = len(specials) + len(self.texts) + last
        self.marks = marks(specials, self.size, last)
        self.spaced = spaced
        self.shift = len(specials)
        self._ids = {text: n for n, text in enumerate(self.texts, self.shift)}

    def encode(self, text: str) -> list[int]:
        """The ids of the characters of a text."""
        return self.look_up(text)

    def look_up(self, pieces: Iterable[str]) -> list[int]:
        """The id of each piece; one that is not in the list is <unk>, or refused if there is no <unk>."""
        pieces = list(pieces)
        ids = list(map(self._ids.get, pieces))
        if None not in ids:
            return ids  # type: ignore[return-value]
        if self.unknown is None:
            what = pieces[ids.index(None)]
            code = f" (U+{ord(what):04X})" if len(what) == 1 else ""
            kind = "word" if self.spaced else "character"
            raise DataError(
                f"every {kind} must be in the vocabulary, which has no <unk>, but {what!r}{code} is not."
            )
        return [self.unknown if n is None else n for n in ids]

    def adds(self, before: int | None, token: int) -> bytes:
        text = self.texts[token - self.shift]
        if not self.spaced or before is None:
            return text.encode()
        return (text if glued(self._text(before), text) else " " + text).encode()

    def continues(self, token: int) -> bool:
        return not self.spaced and not self.texts[token - self.shift].isspace()

    def state(self) -> dict[str, Any]:
        return {"texts": self.texts}

    def _text(self, token: int) -> str:
        inside = 0 <= token - self.shift < len(self.texts)
        return self.texts[token - self.shift] if inside else ""


def glued(before: str, after: str) -> bool:
    """Whether two words are written without a space between: after an opening bracket, before a full stop."""
    return after in CLOSING or before in OPENING


def utf8(text: str) -> bytes:
    """The bytes of a text; half a character (a lone surrogate) is refused, since no file can hold it."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{text[error.start]!r} is half a character, which no text has.") from None


class Stream:
    """Text from ids as they come: `push(id)` gives what is certain by now, `end()` the rest.

    A character that takes several ids appears when its last id has come, never as U+FFFD in between. What all
    calls give together is the text of all ids at once. Special tokens and negative ids add nothing.
    """

    def __init__(self, codec: Codec, keep: bool = False) -> None:
        self._codec = codec
        self._names = {number: name for name, number in codec.marks.items()}
        self._keep = keep
        self._before: int | None = None
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """What this id adds to the text."""
        token = int(token)
        if token < 0:
            return ""
        if token >= self._codec.size:
            raise UsageError(
                f"an id must be below {self._codec.size}, the size of the vocabulary, but is {token}."
            )
        if token not in self._names:
            added = self._codec.adds(self._before, token)
        elif self._keep:
            added = self._names[token].encode()
        else:
            return ""
        self._before = token
        return self._bytes.decode(added)

    def end(self) -> str:
        """What is left: nothing, or U+FFFD for a character that was begun and not ended."""
        return self._bytes.decode(b"", True)
