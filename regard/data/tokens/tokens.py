"""Tokens: the family. Text becomes numbers, and numbers text."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, Self

from regard.data.text import Name, replacing, sync_folder
from regard.data.tokens.codec import SENTINEL, Codec, Stream, contents
from regard.errors import DataError, DiskError, UsageError
from regard.spec import kind_of, read


class Tokens(ABC):
    """Text to ids and back. First `fit`, or `load_tokens`; then `encode` and `decode`."""

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        self.options = options or {}
        self.specials: list[str] = []
        self._codec: Codec | None = None

    # -- what a kind must say

    @abstractmethod
    def learn(self, lines: Iterable[str], specials: list[str], last: int) -> Codec:
        """A vocabulary for these lines."""

    @abstractmethod
    def restore(
        self, state: Mapping[str, Any], files: Mapping[str, bytes], specials: list[str], last: int
    ) -> Codec:
        """The vocabulary that was saved as this."""

    # -- what all kinds can do

    def fit(self, lines: Iterable[str], specials: Sequence[str] = (), last: int = 0) -> Self:
        """Learn a vocabulary from lines of text; the same lines give the same vocabulary, file for file.

        Options:
          specials  names of special tokens; they get the ids 0, 1, 2, ... in this order.
          last      how many sentinels to put at the end of the vocabulary; see `sentinel`.
        """
        names = list(specials)
        for name in names:
            if not name or names.count(name) > 1 or name.startswith(SENTINEL):
                raise UsageError(
                    f"special tokens must have different names, not {SENTINEL}..., but {name!r} is given."
                )
        self._use(self.learn(lines, names, last))
        return self

    def _use(self, codec: Codec) -> None:
        self._codec = codec
        self.specials = [name for name in codec.marks if not name.startswith(SENTINEL)]

    @property
    def codec(self) -> Codec:
        """The learned vocabulary."""
        if self._codec is None:
            raise UsageError(f"{kind_of(type(self))} tokens must be fitted or loaded before they are used.")
        return self._codec

    @property
    def vocab(self) -> int:
        """How many ids there are: specials, vocabulary and sentinels."""
        return self.codec.size

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without any special token: the text "<s>" is three letters like any other."""
        return self.codec.encode(text)

    def encode_all(self, texts: Iterable[str], name: str = "text") -> list[list[int]]:
        """The ids of many texts; an error names the text as `name:number`, from 1 on."""
        rows: list[list[int]] = []
        texts = iter(texts)
        while some := list(islice(texts, 1000)):
            try:
                rows += self.codec.encode_all(some)
            except DataError:
                for number, text in enumerate(some, len(rows) + 1):
                    try:
                        self.encode(text)
                    except DataError as error:
                        raise DataError(f"{name}:{number}: {error}") from None
        return rows

    def decode(self, ids: Iterable[int], keep: bool = False) -> str:
        """The text of ids, without special tokens and negative ids; `keep` writes special tokens by name."""
        stream = self.stream(keep)
        return "".join([stream.push(token) for token in ids]) + stream.end()

    def stream(self, keep: bool = False) -> Stream:
        """A decoder to which ids are pushed one by one; see Stream."""
        return Stream(self.codec, keep)

    def id(self, name: str) -> int:
        """The id of a special token or a sentinel."""
        if name not in self.codec.marks:
            near = get_close_matches(name, self.codec.marks, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise UsageError(
                f"there is no special token {name!r}, only {', '.join(self.specials) or 'none'}.{hint}"
            )
        return self.codec.marks[name]

    def sentinel(self, k: int) -> int:
        """The id of sentinel k, which stands for the k-th gap; they count down from the last id."""
        return self.id(f"{SENTINEL}{k}>")

    def piece(self, token: int) -> str:
        """One id as something to show: a name, letters, or \\xe4 for a byte that is no letter by itself."""
        name = next((name for name, number in self.codec.marks.items() if number == token), None)
        return name or self.codec.adds(None, token).decode("utf-8", "backslashreplace")

    def continues(self, token: int) -> bool:
        """Whether an id goes on with the word of the id before it. Special tokens never do."""
        return token not in self.codec.marks.values() and self.codec.continues(token)

    # -- on disk

    def files(self) -> dict[str, bytes]:
        """What is saved, by file name: tokens.json and, for subwords, tokenizer.json."""
        about = {
            "format": "regard tokens 1",
            "kind": kind_of(type(self)),
            "options": self.options,
            "specials": self.specials,
            "last": len(self.codec.marks) - len(self.specials),
            **self.codec.state(),
        }
        text = json.dumps(about, ensure_ascii=False, indent=1) + "\n"
        return {"tokens.json": text.encode(), **self.codec.files()}

    def digest(self) -> str:
        """The sha256 of what is saved. Equal digests mean equal ids for every text."""
        total = hashlib.sha256()
        for name, data in sorted(self.files().items()):
            total.update(f"{name}\0{len(data)}\0".encode() + data)
        return total.hexdigest()

    def save(self, folder: Name) -> None:
        """Write the files into a folder; a new folder appears with all of them or not at all."""
        folder = Path(folder)
        if folder.exists():
            self._write(folder)
            return
        draft = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        try:
            draft.mkdir(parents=True)
            self._write(draft)
            draft.rename(folder)
            sync_folder(folder.parent)
        except OSError as error:
            if isinstance(error, DiskError):
                raise
            raise DiskError(f"{folder} could not be written: {error.strerror or error}.") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _write(self, folder: Path) -> None:
        for name, data in sorted(
            self.files().items(), reverse=True
        ):  # tokens.json last: it says what is there
            with replacing(folder / name) as file:
                file.write(data)

    @staticmethod
    def load(folder: Name) -> Tokens:
        """The same as `load_tokens`."""
        return load_tokens(folder)


def load_tokens(folder: Name) -> Tokens:
    """The tokens that were saved in a folder, or those of a tokenizer.json from elsewhere."""
    folder = Path(folder)
    if not (folder / "tokens.json").is_file():
        return _from_elsewhere(folder)
    try:
        about = json.loads(contents(folder / "tokens.json"))
        options = {"kind": about["kind"], **about["options"]}
        recipe = read(Tokens, options)  # type: ignore[type-abstract]
        specials, last = [str(name) for name in about["specials"]], int(about["last"])
        tokens = recipe.build()
        others = {path.name: contents(path) for path in sorted(folder.glob("tokenizer.json"))}
        tokens._use(tokens.restore(about, others, specials, last))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        said = f"{type(error).__name__} {error}" if isinstance(error, KeyError | TypeError) else str(error)
        raise DataError(f"{folder / 'tokens.json'}: these are not saved tokens: {said}") from None
    return tokens


def _from_elsewhere(folder: Path) -> Tokens:
    if not (folder / "tokenizer.json").is_file():
        raise DataError(f"{folder}: there must be a tokens.json or a tokenizer.json in this folder.")
    try:
        model = json.loads(contents(folder / "tokenizer.json"))["model"]
        kind = {"BPE": "bpe", "Unigram": "unigram", "WordPiece": "wordpiece"}[model["type"]]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise DataError(
            f"{folder / 'tokenizer.json'}: this is no BPE, unigram or WordPiece tokenizer."
        ) from None
    about = {"kind": kind, "file": str(folder / "tokenizer.json")}
    return read(Tokens, about).build()  # type: ignore[type-abstract]
