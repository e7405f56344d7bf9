"""Words as tokens."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from regard.data.tokens.codec import Codec, Listed
from regard.data.tokens.tokens import Tokens
from regard.errors import DataError, UsageError
from regard.spec import part


class WordList(Listed):
    """A list of words, looked up after splitting a text."""

    def __init__(self, words: Iterable[str], specials: list[str], last: int, lower: bool) -> None:
        super().__init__(words, specials, last, spaced=True)
        self.lower = lower

    def encode(self, text: str) -> list[int]:
        """The ids of the words of a text."""
        return self.look_up(split(text, self.lower))


@part
class Words(Tokens):
    """The most frequent words and marks of punctuation are tokens.

    Words are what stands between white space, marks of punctuation split off; an apostrophe or a hyphen
    inside a word stays. What is not in the vocabulary is <unk> if that is among the special tokens, and an
    error otherwise.
    Decoding puts spaces between words and none before a full stop, so spacing is not kept exactly.
    Bengio et al. 2003, "A neural probabilistic language model", section 2.

    Options:
      vocab  ids in all, special tokens included.
      lower  fold upper case first.
    """

    def __init__(self, vocab: int = 10_000, lower: bool = False) -> None:
        if vocab < 1:
            raise UsageError(f"vocab must be at least 1, but is {vocab}.")
        super().__init__({"vocab": vocab, "lower": lower})
        self.most, self.lower = vocab, lower

    def learn(self, lines: Iterable[str], specials: list[str], last: int) -> Codec:
        """The most frequent words; among equally frequent ones the first of the alphabet."""
        counts: Counter[str] = Counter()
        for line in lines:
            counts.update(split(line, self.lower))
        for name in specials:
            del counts[name]  # a word that reads like a special token must not take its place
        room = self.most - len(specials) - last
        if not counts:
            raise DataError("the vocabulary must be learned from some words, but there were none.")
        if room < 1:
            raise UsageError(f"vocab must leave room for words, but {self.most} is taken by special tokens.")
        words = sorted(counts, key=lambda word: (-counts[word], word))[:room]
        return WordList(words, specials, last, self.lower)

    def restore(
        self, state: Mapping[str, Any], files: Mapping[str, bytes], specials: list[str], last: int
    ) -> Codec:
        """The same again."""
        texts = [str(text) for text in state["texts"]]
        if len(set(texts)) < len(texts):
            raise ValueError("texts must be different words.")
        return WordList(texts, specials, last, self.lower)


def split(text: str, lower: bool = False) -> list[str]:
    """The words and marks of a text, in order."""
    return [piece for chunk in (text.lower() if lower else text).split() for piece in _split_chunk(chunk)]


@lru_cache(maxsize=2**16)
def _split_chunk(chunk: str) -> tuple[str, ...]:
    if chunk.isalnum():
        return (chunk,)
    pieces: list[str] = []
    word = ""
    for n, letter in enumerate(chunk):
        inner = letter in "'-\u2019" and word and n + 1 < len(chunk) and not _mark(chunk[n + 1])
        if _mark(letter) and not inner:
            pieces += [word, letter] if word else [letter]
            word = ""
        else:
            word += letter
    return (*pieces, word) if word else tuple(pieces)


def _mark(letter: str) -> bool:
    return unicodedata.category(letter)[0] in "PS"
