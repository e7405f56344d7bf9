"""Tokens become text while they are written: whole characters only, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[list[int]], str]


def cut(text: str, stop: Sequence[str]) -> str:
    """The text before the first stop string in it, or all of it."""
    return text[: min((at for at in map(text.find, stop) if at >= 0), default=len(text))]


def pending(text: str, stop: Sequence[str]) -> int:
    """How many characters at the end may be the beginning of a stop string."""
    longest = 0
    for word in stop:
        for size in range(min(len(word) - 1, len(text)), longest, -1):
            if text.endswith(word[:size]):
                longest = size
                break
    return longest


class Text:
    """The text of one answer while it grows.

    All the ids are decoded each time: what a token means as text may depend on its neighbours (bytes of one
    character, spaces between words), and this way the pieces always add up to the text of the whole.

    Options:
        decode: turns ids into text
        stop: strings that end the answer
    """

    def __init__(self, decode: Decode, stop: Sequence[str] = ()) -> None:
        self.decode = decode
        self.stop = stop
        self.said = ""
        self.stopped = False

    def grow(self, ids: list[int], last: bool = False) -> str:
        """What is certain now and was not before; all that is left if these are the last ids."""
        whole = self.decode(ids)
        text = cut(whole, self.stop)
        self.stopped = len(text) < len(whole)
        if not (last or self.stopped):
            text = text.rstrip("\ufffd")  # a character whose bytes have not all come yet
            text = text[: len(text) - pending(text, self.stop)]
            if not text.startswith(self.said):  # the decoder took something back: wait until it is settled
                return ""
        fresh = text[len(self.said) :]
        self.said += fresh
        return fresh
