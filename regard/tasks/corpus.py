"""Running text as one stream of tokens on disk, cut into windows: what language, masked and denoise share."""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from regard.data.batch import Batch, Batches, Numbers
from regard.data.order import mix
from regard.data.segments import shifted_edges, still_edges
from regard.data.shards import Shards
from regard.data.synthetic import Split
from regard.data.text import read_lines, read_text, replacing
from regard.data.tokens import Tokens
from regard.errors import DataError, UsageError
from regard.spec import Recipe
from regard.tasks.task import Task, digest_of_files, digest_of_texts, settle_tokens

Files = str | list[str]
Document = Literal["file", "line"]
Cut = Literal["once", "anywhere"]
EOS = "</s>"


class Corpus(Task):
    """Text files, tokenised once into memory-mapped shards, so that a corpus larger than memory trains.

    With `document: file` the text is one stream with its line ends; several files are ended by </s> each.
    With `document: line` every line is a document of its own, ended by </s>. `valid` is other files, or a
    share of the text: 0.1 is its last 10 %, counted in characters.
    """

    files: ClassVar[tuple[str, ...]] = ("text", "valid", "test")
    end: ClassVar[str] = EOS
    marks: int = 0  # sentinels at the end of the vocabulary

    def __init__(
        self,
        text: Files,
        valid: Files | float,
        test: Files | None,
        tokens: Recipe[Tokens],
        document: Document,
    ) -> None:
        super().__init__()
        if isinstance(valid, float | int) and not 0 < valid < 1:
            raise UsageError(f"valid must be files or a share between 0 and 1, but is {valid}.")
        self.sources: dict[Split, list[str]] = {"train": _listed(text)}
        self.share = valid if isinstance(valid, float) else None
        self.sources["valid"] = self.sources["train"] if isinstance(valid, float) else _listed(valid)
        if test is not None:
            self.sources["test"] = _listed(test)
        self.recipe, self.document = tokens, document
        self.length: int | None = None
        self.streams: dict[Split, Shards] = {}
        self.bytes: dict[Split, int] = {}
        self._digest: str | None = None

    @property
    def specials(self) -> list[str]:
        """</s> where documents end; one single file needs none."""
        several = any(len(paths) > 1 for paths in self.sources.values())
        return [self.end] if several or self.document == "line" else []

    def prepare(self, folder: Path | None = None) -> None:
        """Train the tokens on the train split alone; write each split as shards, unless they are there."""
        self._digest = None
        self.tokens = settle_tokens(
            folder, self.recipe, lambda: self._fit_on("train"), self.specials, self.marks
        )
        if self.document == "file" and self.tokens.decode(self.tokens.encode("\n")) != "\n":
            raise UsageError(
                f"tokens of kind {type(self.tokens).__name__.lower()} do not keep line ends; "
                "say document: line, or choose bytes, chars or bpe."
            )
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="regard-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        for split in self.sources:
            self._open(split, folder / "data" / split)

    def data_digest(self) -> str:
        """The sha256 over the files and how they are divided."""
        if self._digest is None:  # once: reading a large corpus takes a while
            files = digest_of_files(path for paths in self.sources.values() for path in paths)
            self._digest = digest_of_texts([files, str(self.share), self.document])
        return self._digest

    def pieces(self, split: Split) -> Iterator[tuple[str, bool]]:
        """The text of a split in pieces that fit in memory, each with whether a document ends after it."""
        if self.share is None or split == "test":
            yield from self._pieces(self.sources[split])
            return
        total = sum(len(text) for text, _ in self._pieces(self.sources["train"]))
        cut, seen = int(total * (1 - self.share)), 0
        for text, ends in self._pieces(self.sources["train"]):
            here = min(max(cut - seen, 0), len(text))  # characters of this piece that belong to train
            seen += len(text)
            if self.document == "line" and here < len(text):
                here = 0  # a line is not divided: the one in which the cut falls is the first of valid
            part = text[:here] if split == "train" else text[here:]
            if part:
                yield part, ends and (split == "valid" or here == len(text))

    def stream(self, split: Split) -> Shards:
        """The tokens of a split."""
        if split not in self.streams:
            raise UsageError(f"there is no {split} split; give the task files for it: task.{split}=FILE.")
        return self.streams[split]

    def windows(
        self,
        split: Split,
        total: int,
        length: int,
        make: Callable[[Sequence[tuple[int, int, int]], int], Batch],
        size: int | None,
        seed: int,
        shuffle: bool | None,
        cut: Cut = "once",
    ) -> Batches:
        """Batches of windows. `make` gets (sample number, start, stop) of each window, and the epoch.

        Each epoch of training shifts the windows anew, so that a token is not always at the same place.
        """
        shuffle = split == "train" if shuffle is None else shuffle

        @lru_cache(maxsize=2)
        def edges(epoch: int) -> np.ndarray:
            if not shuffle:
                return still_edges(total, length)
            shift = np.random.Generator(np.random.Philox(key=[seed % 2**64, epoch])).integers(1, length + 1)
            return shifted_edges(total, length, int(shift))

        def of_numbers(numbers: Numbers, epoch: int) -> Batch:
            if cut == "anywhere" and shuffle and total > length:
                starts = mix(seed, epoch, numbers) % np.uint64(total - length + 1)
                pairs = zip(numbers.tolist(), starts.tolist(), strict=True)
                return make([(n, start, start + length) for n, start in pairs], epoch)
            at = edges(epoch)
            return make([(n, int(at[n]), int(at[n + 1])) for n in numbers.tolist()], epoch)

        return Batches(len(edges(0)) - 1, of_numbers, size=size, seed=seed, shuffle=shuffle)

    def _pieces(self, paths: list[str]) -> Iterator[tuple[str, bool]]:
        for path in paths:
            if self.document == "line":
                for line in read_lines(path, need=True):
                    if line.strip():
                        yield line + "\n", True
                continue
            previous = None
            for text in read_text(path):
                if previous is not None:
                    yield previous, False
                previous = text
            if previous is None:
                raise DataError(f"{path}: the file is empty, but text is needed.")
            yield previous, True

    def _fit_on(self, split: Split) -> Iterator[str]:
        for text, _ in self.pieces(split):
            yield text.removesuffix("\n") if self.document == "line" else text

    def _encoded(self, split: Split, count: dict[str, int]) -> Iterator[list[int]]:
        end, lines = [self.tokens.id(self.end)] if self.end in self.specials else [], 0
        for text, ends in self.pieces(split):
            ids = self._encode(text.removesuffix("\n") if self.document == "line" else text, split, lines)
            count["bytes"] += len(text.encode())
            lines += text.count("\n")
            yield ids + end if ends else ids

    def _encode(self, text: str, split: Split, lines: int) -> list[int]:
        """The ids of a piece of text; a character without a token is refused with its line in the split."""
        try:
            return self.tokens.encode(text)
        except DataError:
            for number, line in enumerate(text.split("\n"), lines + 1):
                try:
                    self.tokens.encode(line)
                except DataError as error:
                    raise DataError(f"the {split} split, line {number}: {error}") from None
            raise

    def _open(self, split: Split, folder: Path) -> None:
        """Shards of the same text and the same tokens are used again; others are written anew."""
        note = folder.with_suffix(".json")
        of_what = digest_of_texts([self.data_digest(), self.tokens.digest(), split])
        there = json.loads(note.read_bytes()) if note.is_file() and (folder / "index.json").is_file() else {}
        if there.get("digest") == of_what:
            self.bytes[split] = int(there["bytes"])
        else:
            count = {"bytes": 0}
            folder.parent.mkdir(parents=True, exist_ok=True)
            Shards.write(folder, self._encoded(split, count))
            self.bytes[split] = count["bytes"]
            with replacing(note) as file:
                file.write(json.dumps({"digest": of_what, **count}).encode())
        self.streams[split] = Shards.open(folder)
        if len(self.streams[split]) < 3:
            raise DataError(f"the {split} split has {len(self.streams[split])} tokens, but needs at least 3.")


def _listed(files: Files) -> list[str]:
    return [files] if isinstance(files, str) else list(files)
