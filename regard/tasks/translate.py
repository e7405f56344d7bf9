"""From one language to another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from regard.data.pairs import read_pairs
from regard.data.synthetic import Split
from regard.data.tables import read_table
from regard.data.tokens import Bpe, Tokens
from regard.dims import Dims
from regard.errors import DataError, UsageError
from regard.model import Model
from regard.nn.head import Convention, CrossEntropy
from regard.spec import Recipe, of, part
from regard.tasks.metrics import bleu, chrf
from regard.tasks.task import Figures, digest_of_files, digest_of_texts, hold_out, settle_tokens
from regard.tasks.transduce import BOS, EOS, UNK, Row, Transduce

if TYPE_CHECKING:
    from regard.decode import Rules


@part
class Translate(Transduce):
    """Learn to translate from pairs of lines, score by BLEU and chrF.

    Both sides share one set of tokens. Vaswani et al. 2017, sections 5 and 6, arXiv 1706.03762. BLEU
    (Papineni et al. 2002) and chrF (Popovic 2015) are sacrebleu's, with its signature beside them (Post 2018,
    arXiv 1804.08771). While training, `limit` sentences are translated greedily, a whole split by beam.

    Options:
        source, target: files of the train split, line by line; or two fields of `table`
        valid_source, valid_target: files of the valid split; if missing, part of the train split is held out
        test_source, test_target: files of the test split
        table, valid_table, test_table: .tsv or .jsonl files with both sides as named fields, instead of files
        fields: the names of all columns of .tsv files whose first line does not name them
        tokens: how text is cut into tokens, the same for both sides; trained on the train split
        lower: all text is lower-cased, and so is the scoring
        smoothing: label smoothing
        convention: how the smoothed share is counted: torch, fairseq or t2t
        longest: leave out pairs of the train split with more tokens on one side; they are counted in the log
        beam, alpha: beam and length penalty of the evaluation; a beam of 1 is greedy
        limit: sentences of the valid split that are translated while training
    """

    metric = "bleu"
    better = "max"
    files = (
        "source", "target", "valid_source", "valid_target", "test_source", "test_target",
        "table", "valid_table", "test_table",
    )  # fmt: skip

    def __init__(
        self,
        source: str,
        target: str,
        valid_source: str | None = None,
        valid_target: str | None = None,
        test_source: str | None = None,
        test_target: str | None = None,
        table: str | None = None,
        valid_table: str | None = None,
        test_table: str | None = None,
        fields: list[str] | None = None,
        tokens: Recipe[Tokens] = of(Bpe),
        lower: bool = False,
        smoothing: float = 0.1,
        convention: Convention = "fairseq",
        longest: int | None = None,
        beam: int = 5,
        alpha: float = 1.0,
        limit: int = 200,
    ) -> None:
        super().__init__()
        self.names = (source, target)
        self.where: dict[Split, tuple[str | None, ...]] = {
            "train": (table,) if table else (source, target),
            "valid": (valid_table,) if table else (valid_source, valid_target),
            "test": (test_table,) if table else (test_source, test_target),
        }
        for split, paths in self.where.items():
            if len({path is None for path in paths}) == 2:
                raise UsageError(f"{split}_source and {split}_target must be given together, or neither.")
        self.table, self.fields = table, fields
        self.recipe, self.lower, self.longest = tokens, lower, longest
        self.cost = CrossEntropy(smoothing, convention)
        self.beam, self.alpha, self.limit = beam, alpha, limit
        self.texts: dict[Split, list[tuple[str, str]]] = {}
        self.ids: dict[Split, list[Row]] = {}

    def prepare(self, folder: Path | None = None) -> None:
        """Read all pairs, train the tokens on both sides of the train split, and encode everything."""
        self.notes = []
        self.texts = {split: self._read(split) for split, paths in self.where.items() if paths[0] is not None}
        if "valid" not in self.texts:
            self.texts["train"], self.texts["valid"], note = hold_out(self.texts["train"])
            self.notes.append(note)
        self.tokens = settle_tokens(folder, self.recipe, self._sides, [BOS, EOS, UNK])
        self.ids = {
            split: [(self.tokens.encode(a), self.tokens.encode(b)) for a, b in pairs]
            for split, pairs in self.texts.items()
        }
        if self.longest is not None:
            kept = [n for n, row in enumerate(self.ids["train"]) if max(map(len, row)) < self.longest]
            left_out = len(self.ids["train"]) - len(kept)
            if left_out:
                self.notes.append(
                    f"{left_out} pairs of the train split with {self.longest} tokens or more left out"
                )
            if not kept:
                raise DataError(
                    f"no pair of the train split has fewer than {self.longest} tokens; raise longest."
                )
            self.ids["train"] = [self.ids["train"][n] for n in kept]
            self.texts["train"] = [self.texts["train"][n] for n in kept]

    def fit_to(self, dims: Dims) -> None:
        """Refuse pairs that the model cannot hold; nothing is cut without a word."""
        for split, rows in self.ids.items():
            most = max(max(len(source), len(target)) for source, target in rows) + 1
            if most > dims.length:
                said = "raise dims.length or give task.longest" if split == "train" else "raise dims.length"
                raise DataError(
                    f"the longest pair of the {split} split has {most} tokens with its end, but the model "
                    f"holds dims.length = {dims.length}; {said}."
                )

    def data_digest(self) -> str:
        """The sha256 over the files, and whether they are lower-cased."""
        files = digest_of_files(path for paths in self.where.values() for path in paths)
        return digest_of_texts([files, str(self.lower), *(self.names if self.table else ())])

    def sizes(self, split: Split) -> list[tuple[int, int]]:
        """The lengths of both sides of each pair, their ends included."""
        return [(len(source) + 1, len(target) + 1) for source, target in self._rows(split)]

    def rows(self, split: Split, numbers: Sequence[int], epoch: int, seed: int) -> list[Row]:
        """The pairs with these numbers."""
        rows = self._rows(split)
        return [rows[n] for n in numbers]

    def clean(self, text: str) -> str:
        """Lower-cased, if that was asked."""
        return text.lower() if self.lower else text

    def evaluate(self, model: Model, split: Split = "valid", limit: int | None = None) -> Figures:
        """loss (with label smoothing), bleu, chrf and the signatures.

        A whole split is translated by beam search; with a `limit`, so many sentences greedily.
        """
        from regard.decode import Rules

        rows = self._rows(split)[:limit]
        rules = Rules() if limit is not None or self.beam == 1 else self.rules()
        found = self.answers(model, [source for source, _ in rows], rules)
        answers = [best[0].text or "" for best in found]
        truth = [target for _, target in self.texts[split][:limit]]
        score, signature = bleu(answers, truth, self.lower)
        letters, letters_signature = chrf(answers, truth, self.lower)
        return {
            "loss": self.mean_loss(model, split, limit),
            "bleu": score,
            "chrf": letters,
            "signature": signature,
            "chrf_signature": letters_signature,
            "search": "greedy" if rules.method == "greedy" else f"beam {rules.beam}, alpha {rules.alpha:g}",
            "sentences": len(rows),
        }

    def rules(self) -> Rules:
        """How this task searches when nothing else is asked."""
        from regard.decode import Rules

        return Rules(method="beam", beam=self.beam, alpha=self.alpha)

    def _rows(self, split: Split) -> list[Row]:
        if split not in self.ids:
            raise UsageError(f"there is no {split} split; give task.{split}_source and task.{split}_target.")
        return self.ids[split]

    def _sides(self) -> list[str]:
        return [text for pair in self.texts["train"] for text in pair]

    def _read(self, split: Split) -> list[tuple[str, str]]:
        paths = [path for path in self.where[split] if path is not None]
        if self.table:
            rows = read_table(paths[0], self.fields)
            lacking = next((name for name in self.names if name not in rows[0]), None)
            if lacking:
                raise DataError(f"{paths[0]}: there is no field {lacking!r}; there are {', '.join(rows[0])}.")
            pairs = [(row[self.names[0]], row[self.names[1]]) for row in rows]
        else:
            found = read_pairs(paths[0], paths[1])
            if found.dropped:
                self.notes.append(f"{found.dropped} pairs of the {split} split left out: one side is empty")
            pairs = [(source, target) for source, target in found]
        return [(self.clean(source), self.clean(target)) for source, target in pairs]
