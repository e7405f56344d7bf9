"""Byte-pair encoding on bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from regard.data.tokens.codec import Codec, contents
from regard.data.tokens.subword import BYTE_TO_LETTER, Subword, assemble, existing, extend, room, some
from regard.data.tokens.tokens import Tokens
from regard.errors import DataError
from regard.spec import part


@part
class Bpe(Tokens):
    """Byte-pair encoding: start from bytes, and merge the most frequent pair of neighbours again and again.

        (a, b) = argmax count(a b);   every "a b" becomes one token "ab";   until vocab is reached

    Words are split off first, a word with the space before it, and merges stay within words. Since it starts
    from all 256 bytes, nothing is unknown, and any text comes back exactly (unless `lower`).
    Sennrich et al. 2016, arXiv 1508.07909; on bytes, Radford et al. 2019 (GPT-2), section 2.2.

    Options:
      vocab  ids in all, special tokens included.
      lower  fold upper case first.
      file   take an existing vocabulary instead of learning one: a tokenizer.json, or GPT-2's vocab.json
             with merges.txt beside it, or a folder with these. Special tokens it lacks come at the end.
    """

    def __init__(self, vocab: int = 8000, lower: bool = False, file: str | None = None) -> None:
        super().__init__({"vocab": vocab, "lower": lower})
        self.most, self.lower = vocab, lower
        self._source = existing(file, "BPE", lower, _from_gpt2) if file else None
        if self._source:
            self._use(extend(self._source, [], 0))

    def learn(self, lines: Iterable[str], specials: list[str], last: int) -> Codec:
        """Merge pairs until the vocabulary is full, or no pair occurs twice."""
        if self._source:
            return extend(self._source, specials, last)
        left = room(self.most, specials, last, 256, "256 bytes")
        engine = _byte_level(models.BPE())
        if self.lower:
            engine.normalizer = normalizers.Lowercase()
        alphabet = [BYTE_TO_LETTER[byte] for byte in range(256)]
        trainer = trainers.BpeTrainer(
            vocab_size=left, min_frequency=2, initial_alphabet=alphabet, show_progress=False
        )
        engine.train_from_iterator(some(lines), trainer)
        found = engine.get_vocab()
        return assemble(engine, sorted(found, key=found.__getitem__), specials, last)

    def restore(
        self, state: Mapping[str, Any], files: Mapping[str, bytes], specials: list[str], last: int
    ) -> Codec:
        """The same again."""
        return Subword(files["tokenizer.json"], state["marks"])


def _byte_level(model: models.BPE) -> Tokenizer:
    engine = Tokenizer(model)
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    return engine


def _from_gpt2(path: Path) -> Tokenizer:
    """GPT-2's pair of files. A word of the vocabulary that no merge makes, like <|endoftext|>, is special."""
    folder = path if path.is_dir() else path.parent
    words, merges = folder / "vocab.json" if path.is_dir() else path, folder / "merges.txt"
    for needed in (words, merges):
        if not needed.is_file():
            raise DataError(
                f"there must be a tokenizer.json, or vocab.json and merges.txt, but no {needed.name}"
            )
    engine = _byte_level(models.BPE.from_file(str(words), str(merges)))
    made = {"".join(line.split(" ")) for line in merges.read_text(encoding="utf-8").split("\n")}
    made.update(BYTE_TO_LETTER.values())
    engine.add_special_tokens([word for word in json.loads(contents(words)) if word not in made])
    return engine
