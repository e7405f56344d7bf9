"""The unigram language model over pieces."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from regard.data.tokens.codec import Codec
from regard.data.tokens.subword import Subword, assemble, existing, extend, room, some
from regard.data.tokens.tokens import Tokens
from regard.errors import DataError, UsageError
from regard.spec import part

STEP = 1e-4
"""Letters that the trainer keeps only to cover the text differ by steps of this score, in random order."""


@part
class Unigram(Tokens):
    """A vocabulary of pieces with probabilities; a text is cut where the product of them is largest.

        x* = argmax over cuts of  sum_i log p(x_i)

    Learning starts from all frequent pieces, fits p by expectation maximisation, and drops, again and again,
    the pieces that the likelihood misses least. Spaces are part of the pieces, so spacing is kept (all but a
    space at the very start). A character that was not in the training text is <unk> if that is among the
    special tokens, and an error otherwise.
    Kudo 2018, section 3.2, arXiv 1804.10959.

    Options:
      vocab  ids in all, special tokens included; more than there are different characters.
      lower  fold upper case first.
      file   take an existing tokenizer.json (T5's, for one) instead of learning a vocabulary.
    """

    def __init__(self, vocab: int = 8000, lower: bool = False, file: str | None = None) -> None:
        super().__init__({"vocab": vocab, "lower": lower})
        self.most, self.lower = vocab, lower
        self._source = existing(file, "Unigram", lower, _no_other) if file else None
        if self._source:
            self._use(extend(self._source, [], 0))

    def learn(self, lines: Iterable[str], specials: list[str], last: int) -> Codec:
        """Pieces by expectation maximisation, the same for the same lines."""
        if self._source:
            return extend(self._source, specials, last)
        left = room(self.most, specials, last, 2, "one character and a space")
        engine = Tokenizer(models.Unigram())
        engine.pre_tokenizer, engine.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        if self.lower:
            engine.normalizer = normalizers.Lowercase()
        seen: set[str] = set()
        # The trainer's own unknown piece is one id more; assemble() drops it, and puts ours where it belongs.
        trainer = trainers.UnigramTrainer(vocab_size=left + 1, unk_token=HOLE, show_progress=False)
        try:
            engine.train_from_iterator(_watch(some(lines), seen), trainer)
        except (DataError, KeyboardInterrupt):
            raise
        except Exception as error:
            raise UsageError(
                f"a unigram vocabulary of {self.most} cannot be learned from text of {len(seen)} different "
                f"characters: {error}"
            ) from None
        pieces = json.loads(engine.to_str())["model"]["vocab"]
        return assemble(
            engine, settle([(text, score) for text, score in pieces if text != HOLE])[:left], specials, last
        )

    def restore(
        self, state: Mapping[str, Any], files: Mapping[str, bytes], specials: list[str], last: int
    ) -> Codec:
        """The same again."""
        return Subword(files["tokenizer.json"], state["marks"])


HOLE = "\ufdd0"
"""A code point that is no character, so that no text has it."""


def settle(pieces: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """The same pieces in one order with one score each, whatever order the trainer met its words in.

    The trainer sums in the order of a hash table that differs from run to run, so scores differ in their last
    digits; and letters that it adds only to cover the text get the lowest score plus some STEPs, by chance.
    Here scores are rounded, those letters get the lowest score, and ties go by the alphabet.
    """
    lowest = min(score for _, score in pieces)
    reach = STEP * sum(len(text) == 1 for text, _ in pieces)

    def steady(text: str, score: float) -> float:
        steps = (score - lowest) / STEP
        by_chance = len(text) == 1 and score <= lowest + reach and abs(steps - round(steps)) < 1e-3
        return round(lowest if by_chance else score, 3)

    return sorted(((text, steady(text, score)) for text, score in pieces), key=lambda p: (-p[1], p[0]))


def _watch(lines: Iterable[str], seen: set[str]) -> Iterator[str]:
    for line in lines:
        seen.update(line)
        yield line


def _no_other(path: Path) -> NoReturn:
    raise DataError("a unigram vocabulary from elsewhere must be a tokenizer.json")
