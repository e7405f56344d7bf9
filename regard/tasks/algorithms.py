"""Copy, reverse, sort, add, count, follow pointers: small algorithms, made on the fly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard.data.synthetic import SPLITS, Algorithm, Split, alphabet, sample
from regard.data.tokens import Chars
from regard.dims import Dims
from regard.errors import UsageError
from regard.model import Model
from regard.spec import of, part
from regard.tasks.task import Figures, digest_of_texts, settle_tokens
from regard.tasks.transduce import BOS, EOS, UNK, Exact, Row


@part
class Algorithms(Exact):
    """A small algorithm to be learned from examples: 'abc' -> 'cba'.

    Every sample is a pure function of (seed, split, number), so training never runs out of new ones.
    Works with an encoder-decoder (source to target) and with a decoder (prompt, then answer).

    Options:
        name: copy, reverse, sort, addition, parity or lookup (follow pairs for some hops)
        symbols: size of the alphabet of copy, reverse, sort and lookup, at most 62
        shortest, longest: least and greatest length of a question (addition: digits; lookup: pairs)
        test_longest: greatest length in the test split, if it is to be another: does the rule carry over?
        hops: how many pairs lookup follows
        samples: samples of one epoch; the next epoch has new ones
        tests: samples of the valid split and of the test split
    """

    def __init__(
        self,
        name: Algorithm = "reverse",
        symbols: int = 50,
        shortest: int = 1,
        longest: int = 25,
        test_longest: int | None = None,
        hops: int = 2,
        samples: int = 40_000,
        tests: int = 1_000,
    ) -> None:
        super().__init__()
        if not 1 <= shortest <= longest:
            raise UsageError(f"shortest must be from 1 to longest, but they are {shortest} and {longest}.")
        if name == "lookup" and max(longest, test_longest or 0, hops + 1) > symbols:
            raise UsageError(
                f"lookup needs as many symbols as it has pairs, but {symbols} symbols were given for "
                f"{max(longest, test_longest or 0, hops + 1)} pairs."
            )
        self.name, self.symbols, self.shortest, self.longest = name, symbols, shortest, longest
        self.test_longest, self.hops = test_longest or longest, hops
        self.samples, self.tests = samples, tests
        self.alphabet = alphabet(name, symbols)

    def prepare(self, folder: Path | None = None) -> None:
        """The tokens are the characters of the alphabet."""
        self.tokens = settle_tokens(folder, of(Chars), lambda: [self.alphabet], [BOS, EOS, UNK])

    def fit_to(self, dims: Dims) -> None:
        """Refuse questions that the model cannot hold."""
        question, answer = self.longest_pair()
        if max(question, answer) + 1 > dims.length:
            raise UsageError(
                f"dims.length must be at least {max(question, answer) + 1} for {self.name} with questions of "
                f"length {max(self.longest, self.test_longest)}, but is {dims.length}."
            )

    def longest_pair(self) -> tuple[int, int]:
        """The most characters a question and an answer can have."""
        most = max(self.longest, self.test_longest)
        if self.name == "addition":
            return 2 * most + 1, most + 1
        if self.name == "lookup":
            return 2 * max(most, self.hops + 1) + 2, 1
        return most, 1 if self.name == "parity" else most

    def data_digest(self) -> str:
        """The sha256 of some samples: another version of the generator is other data."""
        return digest_of_texts(part for split in SPLITS for n in range(100) for part in self.pair(split, n))

    def pair(self, split: Split, number: int, seed: int = 0) -> tuple[str, str]:
        """One question and its answer."""
        longest = self.test_longest if split == "test" else self.longest
        return sample(self.name, seed, split, number, self.symbols, self.shortest, longest, self.hops)

    def sizes(self, split: Split) -> int:
        """Samples of an epoch."""
        return self.samples if split == "train" else self.tests

    def rows(self, split: Split, numbers: Sequence[int], epoch: int, seed: int) -> list[Row]:
        """Samples as ids. Epochs of training go on counting; valid and test stay what they are."""
        first, seed = (epoch * self.samples, seed) if split == "train" else (0, 0)
        pairs = (self.pair(split, first + n, seed) for n in numbers)
        return [(self.tokens.encode(question), self.tokens.encode(answer)) for question, answer in pairs]

    def evaluate(self, model: Model, split: Split = "valid", limit: int | None = None) -> Figures:
        """loss, exact (share of answers that are right as a whole) and token (share of right tokens)."""
        count = self.sizes(split) if limit is None else min(limit, self.sizes(split))
        return self.figures(model, split, [self.pair(split, n) for n in range(count)], limit)
