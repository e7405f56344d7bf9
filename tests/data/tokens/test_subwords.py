"""Byte-pair encoding, unigram and WordPiece: each against a loop from its definition; foreign files."""

from __future__ import annotations

import json
import random
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from regard.data.tokens import Bpe, Unigram, Wordpiece, load_tokens
from regard.errors import DataError

DATA = Path(__file__).parents[4] / "shared" / "data" / "tokenizers"
needs_files = pytest.mark.skipif(not DATA.is_dir(), reason="the vocabularies of GPT-2 and BERT are not here")
TOY = {"low": 5, "lower": 2, "newest": 6, "widest": 3}


def lines() -> list[str]:
    return (Path(__file__).parents[3] / "regard" / "data" / "text.py").read_text(encoding="utf-8").split("\n")


def test_bpe_learns_the_merges_of_the_paper() -> None:
    """Sennrich et al. 2016, section 3.2, without their end of word: pairs by count, ties by smaller ids."""
    tokens = Bpe(256 + 6).fit([word for word, count in TOY.items() for _ in range(count)])
    words = {tuple(word): count for word, count in TOY.items()}
    expected = []
    for _ in range(6):
        counts: Counter[tuple[str, str]] = Counter()
        for pieces, count in words.items():
            for pair in pairwise(pieces):
                counts[pair] += count
        best = min(counts, key=lambda pair: (-counts[pair], [tokens_first(p, expected) for p in pair]))
        expected.append("".join(best))
        words = {merge(pieces, best): count for pieces, count in words.items()}
    assert expected[:3] == ["es", "est", "lo"]
    assert [tokens.piece(n) for n in range(256, 262)] == expected
    assert [tokens.piece(n) for n in tokens.encode("lowest")] == ["low", "est"]


def tokens_first(piece: str, learned: list[str]) -> int:
    return 256 + learned.index(piece) if piece in learned else ord(piece)


def merge(pieces: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for piece in pieces:
        if out and (out[-1], piece) == pair:
            out[-1] += piece
        else:
            out.append(piece)
    return tuple(out)


def test_bpe_merges_nothing_that_occurs_once() -> None:
    assert Bpe(1000).fit(["abcdefgh"]).vocab == 256
    assert Bpe(1000).fit(["ab", "ab"]).vocab == 257


def test_bpe_is_shorter_than_bytes() -> None:
    text = "\n".join(lines())
    tokens = Bpe(1000).fit([text])
    assert len(tokens.encode(text)) < 0.45 * len(text.encode())


def test_unigram_takes_the_most_probable_cut() -> None:
    tokens = Unigram(200).fit(lines(), ["<unk>"])
    model = json.loads(tokens.files()["tokenizer.json"])["model"]
    scores = dict(map(tuple, model["vocab"][1:]))

    @cache
    def best(word: str) -> float:
        cuts = [scores[word[:n]] + best(word[n:]) for n in range(1, len(word) + 1) if word[:n] in scores]
        return max(cuts, default=float("-inf")) if word else 0.0

    for word in random.Random(0).sample(sorted(set(" ".join(lines()).split())), 60):
        pieces = [model["vocab"][n][0] for n in tokens.encode(word)]
        assert "".join(pieces) == "\u2581" + word
        assert sum(scores[piece] for piece in pieces) == pytest.approx(best("\u2581" + word))


def test_unigram_scores_are_log_probabilities_of_frequent_pieces_first() -> None:
    tokens = Unigram(500).fit(lines())
    scores = [score for _, score in json.loads(tokens.files()["tokenizer.json"])["model"]["vocab"]]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] < 0
    assert len(tokens.encode("return")) == 1
    assert len(tokens.encode("nruter")) > 3


def test_wordpiece_takes_the_longest_piece_from_the_left() -> None:
    tokens = Wordpiece(300).fit(lines(), ["[UNK]"])
    vocabulary = json.loads(tokens.files()["tokenizer.json"])["model"]["vocab"]
    names = {number: piece for piece, number in vocabulary.items()}
    for word in sorted({word for line in lines() for word in line.split() if word.isalnum()}):
        expected: list[str] = []
        while (done := sum(len(piece.removeprefix("##")) for piece in expected)) < len(word):
            rest, mark = word[done:], "##" if done else ""
            fitting = [mark + rest[:n] for n in range(len(rest), 0, -1) if mark + rest[:n] in vocabulary]
            if not fitting:
                expected = ["[UNK]"]
                break
            expected.append(fitting[0])
        assert [names[n] for n in tokens.encode(word)] == expected
    assert tokens.decode(tokens.encode("raise DataError (said), yes.")) == "raise DataError (said), yes."


@needs_files
def test_gpt2() -> None:
    text = "Hello world, attention is all you need!"
    ids = [15496, 995, 11, 3241, 318, 477, 345, 761, 0]
    for file in (DATA / "gpt2", DATA / "gpt2" / "vocab.json"):
        tokens = Bpe(file=str(file))
        assert tokens.encode(text) == ids
        assert tokens.decode(ids) == text
        assert (tokens.vocab, tokens.specials, tokens.id("<|endoftext|>")) == (
            50257,
            ["<|endoftext|>"],
            50256,
        )
        assert 50256 not in tokens.encode("<|endoftext|>")
    odd = " \u00e9\u65e5\u672c\U0001f600\n\n  <|endoftext|> it's 1234"
    assert tokens.decode(tokens.encode(odd)) == odd
    ids = random.Random(0).choices(range(50256), k=2000)
    assert tokens.decode(ids) == tokens.codec.engine.decode(ids)  # type: ignore[attr-defined]


@needs_files
def test_gpt2_with_specials_of_our_own(tmp_path: Path) -> None:
    tokens = Bpe(file=str(DATA / "gpt2")).fit([], ["<s>", "</s>"], last=2)
    assert [tokens.id(name) for name in ("<s>", "</s>", "<|endoftext|>")] == [50257, 50258, 50256]
    assert (tokens.vocab, tokens.sentinel(0), tokens.sentinel(1)) == (50261, 50260, 50259)
    assert tokens.encode("Hello <s> world")[0] == 15496
    assert not {50257, 50258} & set(tokens.encode("<s></s>"))
    tokens.save(tmp_path / "t")
    again = load_tokens(tmp_path / "t")
    assert again.digest() == tokens.digest()
    assert again.encode("Hello <s> world") == tokens.encode("Hello <s> world")
    assert again.specials == tokens.specials == ["<s>", "</s>", "<|endoftext|>"]


@needs_files
def test_bert() -> None:
    for file in (DATA / "bert_uncased", DATA / "bert_uncased" / "vocab.txt"):
        tokens = Wordpiece(file=str(file), lower=True)
        assert tokens.encode("Hello world, UNAFFABLE caf\u00e9!") == [
            *[7592, 2088, 1010, 14477, 20961, 3468, 7668, 999],
        ]
        assert (tokens.id("[CLS]"), tokens.id("[SEP]"), tokens.id("[MASK]"), tokens.id("[UNK]")) == (
            101,
            102,
            103,
            100,
        )
        assert tokens.vocab == 30522
        assert 103 not in tokens.encode("[MASK]")
        assert tokens.decode([101, 7592, 2088, 1010, 14477, 20961, 3468, 102]) == "hello world, unaffable"
        assert tokens.continues(20961)
        assert not tokens.continues(7592)


def llama_like() -> Tokenizer:
    """A BPE on characters with bytes for the rest, as SentencePiece makes it for Llama 2."""
    vocab = {"<unk>": 0, "<s>": 1, **{f"<0x{byte:02X}>": byte + 2 for byte in range(256)}}
    for piece in ("\u2581", "h", "e", "l", "o", "he", "ll", "\u2581he", "\u2581hell", "<", "s", ">"):
        vocab[piece] = len(vocab)
    merges = [("h", "e"), ("l", "l"), ("\u2581", "he"), ("\u2581he", "ll")]
    engine = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    engine.pre_tokenizer = pre_tokenizers.Metaspace()
    engine.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    engine.add_special_tokens(["<unk>", "<s>"])
    return engine


def test_a_tokenizer_with_bytes_for_the_rest(tmp_path: Path) -> None:
    llama_like().save(str(tmp_path / "tokenizer.json"))
    for tokens in (Bpe(file=str(tmp_path / "tokenizer.json")), load_tokens(tmp_path)):
        assert tokens.decode(tokens.encode("hello \u65e5 hello")) == "hello \u65e5 hello"
        stream = tokens.stream()
        shown = [stream.push(n) for n in tokens.encode("\u65e5")]
        assert "".join(shown) == "\u65e5"
        assert "\ufffd" not in shown
        assert 1 not in tokens.encode("<s>")
        assert tokens.decode(tokens.encode("<s>")) == "<s>"


@pytest.mark.parametrize("kind", [Bpe, Unigram, Wordpiece])
def test_a_tokenizer_json_from_elsewhere_keeps_its_ids(kind: type[Bpe], tmp_path: Path) -> None:
    made = kind(400).fit(lines(), ["<pad>", "<unk>"])
    made.save(tmp_path)
    (tmp_path / "tokens.json").unlink()
    for tokens in (
        load_tokens(tmp_path),
        kind(file=str(tmp_path)),
        kind(file=str(tmp_path / "tokenizer.json")),
    ):
        assert [tokens.encode(line) for line in lines()] == [made.encode(line) for line in lines()]
        assert (tokens.vocab, tokens.specials) == (made.vocab, ["<pad>", "<unk>"])
    tokens.fit(["nothing of this is read"], ["<unk>", "<s>"], last=1)
    assert (tokens.id("<unk>"), tokens.id("<s>"), tokens.sentinel(0)) == (1, made.vocab, made.vocab + 1)
    assert [tokens.encode(line) for line in lines()] == [made.encode(line) for line in lines()]


def test_what_a_file_adds_or_cuts_does_not_reach_our_ids(tmp_path: Path) -> None:
    """Templates, truncation and padding of a foreign file are left out: the task decides about all three."""
    from tokenizers import processors

    made = Bpe(300).fit(lines(), ["<s>", "<unk>"])
    engine = Tokenizer.from_str(made.files()["tokenizer.json"].decode())
    engine.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    engine.enable_truncation(4)
    engine.enable_padding(length=8)
    engine.save(str(tmp_path / "tokenizer.json"))
    tokens = Bpe(file=str(tmp_path / "tokenizer.json"))
    text = "from __future__ import annotations"
    assert tokens.encode(text) == made.encode(text)
    assert tokens.encode_all(["a", text]) == made.encode_all(["a", text])


def test_files_that_are_no_vocabulary(tmp_path: Path) -> None:
    Bpe(300).fit(lines()).save(tmp_path / "bpe")
    with pytest.raises(DataError, match=r"tokenizer\.json: the model must be WordPiece, but is BPE"):
        Wordpiece(file=str(tmp_path / "bpe"))
    for kind in (Bpe, Unigram, Wordpiece):
        with pytest.raises(DataError, match="nowhere"):
            kind(file=str(tmp_path / "nowhere"))
        with pytest.raises(DataError):
            kind(file=str(tmp_path))
        for name, text in (("a.json", "{}"), ("b.json", '{"model": 3}'), ("c.json", "["), ("d.txt", "a\nb")):
            (tmp_path / name).write_text(text)
            with pytest.raises(DataError, match=name):
                kind(file=str(tmp_path / name))
    whole = (tmp_path / "bpe" / "tokenizer.json").read_text(encoding="utf-8")
    (tmp_path / "e.json").write_text(whole.replace('"A"', '"\u65e5"'), encoding="utf-8")
    with pytest.raises(DataError, match="must stand for bytes"):
        Bpe(file=str(tmp_path / "e.json"))
    (tmp_path / "x").mkdir()
    draw = random.Random(0)
    for _ in range(150):
        start = draw.randrange(len(whole))
        (tmp_path / "x" / "tokenizer.json").write_text(
            whole[:start]
            + draw.choice(["", '"', "9", "{", "null,"])
            + whole[start + draw.randrange(1, 40) :],
            encoding="utf-8",
        )
        try:
            Bpe(file=str(tmp_path / "x")).encode("some text")
        except DataError:
            continue
