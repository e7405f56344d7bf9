"""WordPiece."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from regard.data.tokens.codec import Codec
from regard.data.tokens.subword import Subword, assemble, existing, extend, room, some
from regard.data.tokens.tokens import Tokens
from regard.errors import DataError
from regard.spec import part


@part
class Wordpiece(Tokens):
    """Words cut from the left into the longest pieces of the vocabulary, written ##so inside a word.

        token_1 = longest prefix in the vocabulary;   token_2 = longest prefix of the rest, as ##...

    White space and punctuation separate words. A word that cannot be cut is <unk> as a whole (or [UNK]).
    Decoding puts spaces between words and none before a full stop, so spacing is not kept exactly.
    Schuster and Nakajima 2012; as in BERT, Devlin et al. 2019, section 3, arXiv 1810.04805.
    Differs from the paper: pieces are learned as in byte-pair encoding, by count and not by likelihood.

    Options:
      vocab  ids in all, special tokens included.
      lower  fold upper case first.
      file   take an existing vocabulary instead of learning one: a tokenizer.json, BERT's vocab.txt (with
             lower=True for the uncased one, which then also strips accents), or a folder with one of them.
    """

    def __init__(self, vocab: int = 8000, lower: bool = False, file: str | None = None) -> None:
        super().__init__({"vocab": vocab, "lower": lower})
        self.most, self.lower = vocab, lower
        self._source = existing(file, "WordPiece", False, self._from_bert) if file else None
        if self._source:
            self._use(extend(self._source, [], 0))

    def learn(self, lines: Iterable[str], specials: list[str], last: int) -> Codec:
        """Merge pairs of pieces until the vocabulary is full, or no pair occurs twice."""
        if self._source:
            return extend(self._source, specials, last)
        engine = _bert_like(models.WordPiece(), self.lower, strip_accents=False)
        words = _count(engine, some(lines))
        first = sorted({word[0] for word in words})
        inside = sorted({"##" + letter for word in words for letter in word[1:]})
        left = room(self.most, specials, last, len(first) + len(inside), "all letters, alone and as ##")
        # Named beforehand, letters get their ids in this order; left to itself, the trainer numbers them, and
        # with that breaks ties, by the order of a hash table that differs from run to run.
        trainer = trainers.WordPieceTrainer(
            vocab_size=left, min_frequency=2, special_tokens=[*first, *inside], show_progress=False
        )
        engine.train_from_iterator(_repeat(words), trainer)
        found = engine.get_vocab()
        return assemble(engine, sorted(found, key=found.__getitem__), specials, last)

    def restore(
        self, state: Mapping[str, Any], files: Mapping[str, bytes], specials: list[str], last: int
    ) -> Codec:
        """The same again."""
        return Subword(files["tokenizer.json"], state["marks"])

    def _from_bert(self, path: Path) -> Tokenizer:
        path = path / "vocab.txt" if path.is_dir() else path
        if not path.is_file() or path.suffix == ".json":
            raise DataError("there must be a tokenizer.json or a vocab.txt")
        words = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        known = [name for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if name in words]
        if "[UNK]" not in known:
            raise DataError("a vocab.txt must have a line [UNK]")
        vocabulary = {word: n for n, word in enumerate(words)}
        engine = _bert_like(models.WordPiece(vocabulary, unk_token="[UNK]"), self.lower, strip_accents=None)
        engine.add_special_tokens(known)
        return engine


def _bert_like(model: models.WordPiece, lower: bool, strip_accents: bool | None) -> Tokenizer:
    engine = Tokenizer(model)
    engine.normalizer = normalizers.BertNormalizer(lowercase=lower, strip_accents=strip_accents)
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece()
    return engine


def _count(engine: Tokenizer, lines: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for line in lines:
        plain = engine.normalizer.normalize_str(line)
        counts.update(word for word, _ in engine.pre_tokenizer.pre_tokenize_str(plain))
    return counts


def _repeat(counts: Counter[str]) -> Iterator[str]:
    """Every word as often as it was counted, in lines of a thousand."""
    for word in sorted(counts):
        whole, rest = divmod(counts[word], 1000)
        for times in [1000] * whole + [rest]:
            yield " ".join([word] * times)
