"""Dates in many languages to ISO 8601: a task anyone can check, with nothing to download."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard.data import dates
from regard.data.synthetic import SPLITS, Split
from regard.data.tokens import Chars
from regard.dims import Dims
from regard.errors import UsageError
from regard.model import Model
from regard.spec import of, part
from regard.tasks.task import Figures, digest_of_texts, settle_tokens
from regard.tasks.transduce import BOS, EOS, UNK, Exact, Row

LONGEST = 48  # characters of the longest date in any style, and room to spare


@part
class Dates(Exact):
    """Read a date as people write it in some thirty languages and write it as YYYY-MM-DD.

        'mercredi 3 mars 2021' -> '2021-03-03'

    Every sample is a pure function of (seed, split, number); a date of the test split never occurs
    in training, in no language and no form. Tokens are characters: the alignment goes letter by letter.

    Options:
        samples: samples of one epoch; the next epoch has new ones
        tests: samples of the valid split and of the test split
    """

    def __init__(self, samples: int = 100_000, tests: int = 1_000) -> None:
        super().__init__()
        self.samples, self.tests = samples, tests
        self.limit = 200

    def prepare(self, folder: Path | None = None) -> None:
        """The tokens are the characters that dates are written with."""
        self.tokens = settle_tokens(folder, of(Chars), lambda: ["".join(dates.alphabet())], [BOS, EOS, UNK])

    def fit_to(self, dims: Dims) -> None:
        """Refuse a model that cannot hold the longest date."""
        if dims.length < LONGEST:
            raise UsageError(f"dims.length must be at least {LONGEST} for dates, but is {dims.length}.")

    def data_digest(self) -> str:
        """The sha256 of some samples: names of months that changed with a newer Babel are other data."""
        return digest_of_texts(
            text for split in SPLITS for n in range(500) for text in dates.sample(0, split, n)
        )

    def sizes(self, split: Split) -> int:
        """Samples of an epoch."""
        return self.samples if split == "train" else self.tests

    def rows(self, split: Split, numbers: Sequence[int], epoch: int, seed: int) -> list[Row]:
        """Samples as ids. Epochs of training go on counting; valid and test stay what they are."""
        first, seed = (epoch * self.samples, seed) if split == "train" else (0, 0)
        pairs = (dates.sample(seed, split, first + n) for n in numbers)
        return [(self.tokens.encode(text), self.tokens.encode(iso)) for text, iso in pairs]

    def evaluate(self, model: Model, split: Split = "valid", limit: int | None = None) -> Figures:
        """loss, exact (share of dates that are right as a whole) and token (share of right characters)."""
        count = self.sizes(split) if limit is None else min(limit, self.sizes(split))
        return self.figures(model, split, [dates.sample(0, split, n) for n in range(count)], limit)
