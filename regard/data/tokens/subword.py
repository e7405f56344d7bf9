"""Subwords: vocabularies in the ecosystem's tokenizer.json, run by the `tokenizers` library.

Training there is not repeatable for all kinds and knows special tokens only as pieces of text, so a kind
trains without any, and `assemble` gives the pieces their ids. The text of a special token is then never cut
out of the input; should the vocabulary itself find it as a piece, it is spelled letter by letter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, normalizers

from regard.data.tokens.codec import SENTINEL, UNKNOWN, Codec, contents, glued, marks, utf8
from regard.errors import DataError, UsageError

SPACE = "\u2581"
"""How SentencePiece writes a space."""


class Subword(Codec):
    """A tokenizer.json with the ids of its special tokens. `source` is the file, byte for byte."""

    def __init__(self, source: bytes, names: dict[str, int], engine: Tokenizer | None = None) -> None:
        self.source = source
        self.engine = engine or guard(lambda: Tokenizer.from_str(source.decode()))
        self.engine.encode_special_tokens = True  # that is: as text, like everything else
        self.engine.no_truncation()
        self.engine.no_padding()
        vocabulary = self.engine.get_vocab()
        self.size = max(vocabulary.values(), default=-1) + 1
        self.marks = dict(names)
        if any(vocabulary.get(name) != number for name, number in names.items()):
            raise DataError("the special tokens must have the ids that tokens.json says, but have not.")
        about = json.loads(source)
        self._vocabulary = vocabulary
        self._style = _style(about)
        self._table = _table(vocabulary, about, self._style, self.size)
        self._never = frozenset(names.values()) - {self.unknown}

    def encode(self, text: str) -> list[int]:
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        try:
            if len(texts) == 1:  # without waking the library's threads
                found = [self.engine.encode(texts[0], add_special_tokens=False)]
            else:
                found = self.engine.encode_batch_fast(texts, add_special_tokens=False)
        except Exception as error:
            text = texts[0]
            if len(texts) > 1:
                return [self.encode(text) for text in texts]  # so that the one at fault is named
            utf8(text)
            raise DataError(
                f"{text[:60]!r} has a character that is not in the vocabulary: {error}."
            ) from None
        rows = [row.ids for row in found]
        return [
            self._spelled(text) if self._wrong(text, ids) else ids
            for text, ids in zip(texts, rows, strict=True)
        ]

    def _wrong(self, text: str, ids: list[int]) -> bool:
        """Whether a special token was found in the text; the unknown one may be, but not for its own name."""
        if not self._never.isdisjoint(ids):
            return True
        return self.unknown in ids and any(name in text for name in UNKNOWN)

    def _spelled(self, text: str) -> list[int]:
        """The ids of a text in which a piece reads like a special token: that piece in single letters."""
        names = {number: name for name, number in self.marks.items()}
        found = self.engine.encode(text, add_special_tokens=False)
        ids: list[int] = []
        for token, (start, stop) in zip(found.ids, found.offsets, strict=True):
            name = names.get(token)
            if name is None:
                ids.append(token)
                continue
            # One unknown token may stand for several letters, and for its own name, written once or more.
            parts = text[start:stop].split(name) if token == self.unknown else ["", ""]
            for n, part in enumerate(parts):
                ids += self._letters(name) if n else []
                ids += [token] if part.strip() else []
        return ids

    def _letters(self, name: str) -> list[int]:
        if self._style == "bytes":
            pieces = [BYTE_TO_LETTER[byte] for byte in name.encode()]
        elif self._style == "words":
            pieces = [name[0], *("##" + letter for letter in name[1:])]
        else:
            pieces = list(name)
        ids = [self._vocabulary.get(piece, self.unknown) for piece in pieces]
        if None in ids:
            raise DataError(f"{name!r} has a character that is not in the vocabulary, which has no <unk>.")
        return [n for n in ids if n is not None]

    def adds(self, before: int | None, token: int) -> bytes:
        data = self._table[token]
        if self._style == "words":
            if data.startswith(b"##") and before is not None:
                return data[2:]
            data = data.removeprefix(b"##")
            tight = before is None or glued(self._table[before].decode(), data.decode())
            return data if tight else b" " + data
        return data.removeprefix(b" ") if self._style == "spaces" and before is None else data

    def continues(self, token: int) -> bool:
        data = self._table[token]
        return data.startswith(b"##") if self._style == "words" else not data[:1].isspace()

    def state(self) -> dict[str, Any]:
        return {"marks": self.marks}

    def files(self) -> dict[str, bytes]:
        return {"tokenizer.json": self.source}


def assemble(engine: Tokenizer, pieces: Sequence[Any], specials: list[str], last: int) -> Subword:
    """Give trained pieces their ids: special tokens first, then the pieces in order, sentinels at the end.

    `pieces` are texts, or (text, score) pairs for a unigram model.
    """
    text_of: Callable[[Any], str] = lambda piece: piece if isinstance(piece, str) else piece[0]  # noqa: E731
    taken = {*specials, *marks([], last, last)}
    kept = [piece for piece in pieces if text_of(piece) not in taken]
    size = len(specials) + len(kept) + last
    ids = marks(specials, size, last)
    ends = sorted((number, name) for name, number in ids.items())
    about = json.loads(engine.to_str())
    model = about["model"]
    unknown = next((name for name in UNKNOWN if name in ids), None)
    if model["type"] == "Unigram":
        model["unk_id"] = ids.get(unknown or "")
        first, final = (
            [[name, 0.0] for n, name in ends if (n < len(specials)) == early] for early in (True, False)
        )
        model["vocab"] = [*first, *([text, score] for text, score in kept), *final]
    else:
        model["unk_token"] = unknown if model["type"] == "BPE" else unknown or UNKNOWN[0]
        body = {text_of(piece): n for n, piece in enumerate(kept, len(specials))}
        model["vocab"] = dict(sorted({**ids, **body}.items(), key=lambda item: item[1]))
    about["added_tokens"] = [_added(name, number) for number, name in ends]
    return Subword(json.dumps(about, ensure_ascii=False).encode(), ids)


def _added(name: str, number: int) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": name, **plain, "special": True}


def extend(source: bytes, specials: Sequence[str], last: int) -> Subword:
    """A tokenizer.json from elsewhere. Special tokens and sentinels that it lacks are added at its end."""
    engine = guard(lambda: Tokenizer.from_str(source.decode()))
    own = [token["content"] for token in json.loads(source).get("added_tokens", []) if token["special"]]
    sentinels = [f"{SENTINEL}{k}>" for k in reversed(range(last))]
    if new := [name for name in (*specials, *sentinels) if name not in own]:
        engine.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in new])
        source = engine.to_str().encode()
    vocabulary = engine.get_vocab()
    names = {name: vocabulary[name] for name in dict.fromkeys((*specials, *sentinels, *own))}
    return Subword(source, names, engine)


def guard(make: Callable[[], Tokenizer]) -> Tokenizer:
    """Whatever the library says about a file that is no tokenizer, as one DataError."""
    try:
        return make()
    except (DataError, KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # a panic on the other side of the fence is no Exception
        raise DataError(f"this is no tokenizer that can be read: {str(error)[:200]}.") from None


def some(lines: Iterable[str]) -> Iterator[str]:
    """The same lines, of which at least one must have text in it."""
    lines = iter(lines)
    for line in lines:
        if line and not line.isspace():
            return chain([line], lines)
    raise DataError("the vocabulary must be learned from some text, but there was none.")


def room(vocab: int, specials: list[str], last: int, least: int, why: str) -> int:
    """How many ids are left for pieces; at least `least`."""
    left = vocab - len(specials) - last
    if left < least:
        need = least + len(specials) + last
        raise UsageError(
            f"vocab must be at least {need} ({why} and {need - least} special tokens), but is {vocab}."
        )
    return left


def existing(file: str, kind: str, lower: bool, parts: Callable[[Path], Tokenizer]) -> bytes:
    """The tokenizer.json of an existing file: that file itself, or what `parts` makes of older files.

    `kind` is what the model in it must be. `lower` folds upper case before everything else.
    """
    path = Path(file)
    path = path / "tokenizer.json" if (path / "tokenizer.json").is_file() else path
    try:
        about = json.loads(contents(path)) if path.suffix == ".json" else {}
        if isinstance(about.get("model"), dict):
            if about["model"]["type"] != kind:
                raise DataError(f"the model must be {kind}, but is {about['model']['type']}.")
            engine = guard(lambda: Tokenizer.from_file(str(path)))
        else:
            engine = guard(lambda: parts(path))
        if lower:
            own = [engine.normalizer] if engine.normalizer else []
            engine.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
        return str(engine.to_str()).encode()
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path}: this is no tokenizer that can be read: {error}.") from None


def _letters_of_bytes() -> dict[int, str]:
    """GPT-2's alphabet: printable bytes are their own letters, the others the letters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


BYTE_TO_LETTER = _letters_of_bytes()
LETTER_TO_BYTE = {ord(letter): byte for byte, letter in BYTE_TO_LETTER.items()}


def _bytes(piece: str) -> bytes:
    try:
        return piece.translate(LETTER_TO_BYTE).encode("latin-1")
    except UnicodeEncodeError:
        raise DataError(
            f"the pieces of a byte-level tokenizer must stand for bytes, but {piece!r} does not."
        ) from None


def _style(about: dict[str, Any]) -> str:
    if about["model"]["type"] == "WordPiece":
        return "words"
    decoder = about.get("decoder") or {}
    kinds = {step.get("type") for step in decoder.get("decoders", [decoder])}
    if "ByteLevel" in kinds:
        return "bytes"
    if kinds & {"Metaspace", "ByteFallback"}:
        return "spaces"
    raise DataError(
        f"the decoder of a tokenizer must be ByteLevel or Metaspace, but is {decoder.get('type')}."
    )


def _table(vocabulary: dict[str, int], about: dict[str, Any], style: str, size: int) -> list[bytes]:
    """What each id adds to a text."""
    added = {token["content"] for token in about.get("added_tokens", [])}
    fallback = bool(about["model"].get("byte_fallback"))
    table = [b""] * size
    for piece, number in vocabulary.items():
        if piece in added or style == "words":
            table[number] = piece.encode()
        elif style == "bytes":
            table[number] = _bytes(piece)
        elif fallback and len(piece) == 6 and piece.startswith("<0x"):
            table[number] = bytes.fromhex(piece[3:5])
        else:
            table[number] = piece.replace(SPACE, " ").encode()
    return table
