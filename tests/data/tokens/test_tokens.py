"""What holds for every kind of tokens."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.tokens import Bpe, Bytes, Chars, Tokens, Unigram, Wordpiece, Words, load_tokens
from regard.errors import DataError, UsageError
from regard.spec import kinds

ROOT = Path(__file__).parents[3]
SPECIALS = ["<s>", "</s>", "<unk>"]
SENTINELS = 3
KINDS: dict[str, Callable[[], Tokens]] = {
    "bytes": Bytes,
    "chars": Chars,
    "words": lambda: Words(120),
    "bpe": lambda: Bpe(400),
    "unigram": lambda: Unigram(150),
    "wordpiece": lambda: Wordpiece(150),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
text = st.text(st.characters(exclude_categories=["Cs"]))


def corpus() -> list[str]:
    """Sentences of few words, with marks, letters of one to four bytes, and names of special tokens."""
    draw = random.Random(5)
    words = [
        "the",
        "cat",
        "cats",
        "sat",
        "on",
        "mat",
        "newest",
        "widest",
        "low",
        "stra\u00dfe,",
        "yes.",
        "(no)",
    ]
    words += ["m\u00e4dchen", "don't", "\u65e5\u672c", "\U0001f600", "<s>", "a</s>b", "<unk>"]
    return [" ".join(draw.choices(words, k=draw.randrange(1, 12))) for _ in range(300)]


@cache
def fitted(kind: str, unknown: bool = True) -> Tokens:
    return KINDS[kind]().fit(corpus(), SPECIALS if unknown else SPECIALS[:2], last=SENTINELS)


def test_every_kind_is_here() -> None:
    assert set(kinds(Tokens)) == set(KINDS)  # type: ignore[type-abstract]


@every_kind
def test_specials_first_and_sentinels_last_counting_down(kind: str) -> None:
    tokens = fitted(kind)
    assert [tokens.id(name) for name in SPECIALS] == [0, 1, 2]
    assert [tokens.sentinel(k) for k in range(SENTINELS)] == [tokens.vocab - 1 - k for k in range(SENTINELS)]
    assert tokens.id("<extra_id_0>") == tokens.vocab - 1
    assert tokens.specials == SPECIALS
    used = {n for line in corpus() for n in tokens.encode(line)}
    assert used
    assert min(used - {2}) >= 3
    assert max(used) < tokens.vocab - SENTINELS


def test_vocab_counts_everything() -> None:
    assert fitted("bytes").vocab == 256 + 3 + 3
    assert fitted("chars").vocab == len(set("".join(corpus()))) + 3 + 3
    for kind, size in (("bpe", 400), ("unigram", 150), ("wordpiece", 150)):
        made = KINDS[kind]().fit(open_text().split("\n"), SPECIALS, last=5)
        assert made.vocab == size


def open_text() -> str:
    return (ROOT / "regard" / "data" / "text.py").read_text(encoding="utf-8")


@every_kind
@pytest.mark.parametrize("name", ["<s>", "</s>", "<unk>", "<extra_id_0>"])
def test_the_text_of_a_special_token_is_text(kind: str, name: str) -> None:
    """Also when it is frequent in the training text, and glued to other letters."""
    tokens = fitted(kind)
    for line in (name, f"the {name} cat", f"a{name}b{name}{name}", f"{name} " * 20):
        ids = tokens.encode(line)
        assert ids
        marked = {tokens.id(special) for special in SPECIALS} | {tokens.sentinel(k) for k in range(SENTINELS)}
        assert marked.isdisjoint(ids) or set(ids) & marked == {2}
        if kind in ("bytes", "bpe") or (name != "<extra_id_0>" and kind in ("chars", "unigram")):
            assert 2 not in ids
            assert tokens.decode(ids).strip() == line.strip()


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "words"])
def test_a_special_token_that_reads_like_a_frequent_word(kind: str) -> None:
    """The trainers would gladly learn these pieces; still the word must not come out as the special token."""
    lines = ["PAD newest PAD", "xPADx PAD"] * 50
    tokens = KINDS[kind]().fit(lines, ["PAD", "newest", "<unk>"], last=1)
    for line in ("PAD", "newest PAD", "xPADx"):
        ids = tokens.encode(line)
        assert not {0, 1} & set(ids)
        if kind != "words":
            assert tokens.decode(ids) == line


@every_kind
def test_decode_leaves_out_specials_and_padding(kind: str) -> None:
    tokens = fitted(kind)
    ids = tokens.encode("the cat sat")
    mixed = [-1, 0, *ids[:2], tokens.sentinel(1), -1, *ids[2:], 1, 2, -5]
    assert tokens.decode(mixed) == tokens.decode(ids) == "the cat sat"
    assert tokens.decode([0, *ids, tokens.sentinel(0)], keep=True).split()[-1].endswith("<extra_id_0>")
    assert tokens.decode([]) == ""
    with pytest.raises(UsageError, match=f"below {tokens.vocab}"):
        tokens.decode([tokens.vocab])


@every_kind
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_stream_gives_the_same_text_and_never_half_a_character(kind: str, data: st.DataObject) -> None:
    tokens = fitted(kind)
    if data.draw(st.booleans()):
        line = data.draw(text)
        ids = tokens.encode(line)
        whole = "\ufffd" not in line
    else:
        ids = data.draw(st.lists(st.integers(-1, tokens.vocab - 1), max_size=30))
        whole = False
    stream = tokens.stream()
    pieces = [stream.push(n) for n in ids]
    last = stream.end()
    assert "".join(pieces) + last == tokens.decode(ids)
    if whole:
        assert last == ""
        assert "\ufffd" not in "".join(pieces)


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
@given(line=text)
@settings(max_examples=2500, deadline=None)
def test_any_text_comes_back(kind: str, line: str) -> None:
    tokens = fitted(kind)
    assert tokens.decode(tokens.encode(line)) == line


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_any_ids_are_their_bytes(kind: str, data: st.DataObject) -> None:
    tokens = fitted(kind)
    ids = data.draw(st.lists(st.integers(0, tokens.vocab - 1), max_size=20))
    parts = [tokens.codec.adds(None, n) for n in ids if 3 <= n < tokens.vocab - SENTINELS]
    assert tokens.decode(ids) == b"".join(parts).decode("utf-8", "replace")


@pytest.mark.parametrize("kind", ["chars", "unigram"])
@given(line=st.text(st.sampled_from(sorted(set("".join(corpus()))))))
@settings(max_examples=300, deadline=None)
def test_any_text_of_known_characters_comes_back(kind: str, line: str) -> None:
    tokens = fitted(kind)
    expected = line.removeprefix(" ") if kind == "unigram" else line
    assert tokens.decode(tokens.encode(line)) == expected


@every_kind
def test_a_streamed_emoji_appears_whole(kind: str) -> None:
    tokens = fitted(kind)
    stream = tokens.stream()
    shown = [stream.push(n) for n in tokens.encode("\U0001f600")]
    assert "".join(shown) == "\U0001f600"
    assert all(part in ("", "\U0001f600") for part in shown)


def test_a_character_cut_off_ends_as_a_replacement() -> None:
    tokens = fitted("bytes")
    stream = tokens.stream()
    assert [stream.push(n) for n in tokens.encode("\u65e5")[:2]] == ["", ""]
    assert stream.end() == "\ufffd"


@every_kind
def test_saved_and_loaded_is_the_same(kind: str, tmp_path: Path) -> None:
    tokens = fitted(kind)
    tokens.save(tmp_path / "new")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_text("{}")
    tokens.save(tmp_path / "old")
    for folder in ("new", "old"):
        again = load_tokens(tmp_path / folder)
        assert type(again) is type(tokens)
        assert (again.vocab, again.specials, again.options) == (tokens.vocab, tokens.specials, tokens.options)
        assert again.digest() == tokens.digest()
        assert again.sentinel(2) == tokens.sentinel(2)
        lines = [*corpus()[:50], "<s> never seen \u00e9 \u2028 ", ""]
        assert again.encode_all(lines) == tokens.encode_all(lines)
        ids = random.Random(0).choices(range(tokens.vocab), k=300)
        assert again.decode(ids) == tokens.decode(ids)
    assert (tmp_path / "old" / "config.json").read_text() == "{}"
    assert Tokens.load(tmp_path / "new").digest() == tokens.digest()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]


@every_kind
def test_encode_all_is_encode_of_each(kind: str) -> None:
    tokens = fitted(kind)
    lines = (corpus() + ["", " ", "<s>", "caf\u00e9"]) * 4  # more than one helping of a thousand
    assert tokens.encode_all(iter(lines)) == [tokens.encode(line) for line in lines]


def test_digests_tell_vocabularies_apart() -> None:
    made = [fitted(kind).digest() for kind in KINDS] + [fitted(kind, False).digest() for kind in KINDS]
    made += [Chars().fit(["ab"]).digest(), Chars().fit(["abc"]).digest(), Bytes().digest()]
    made += [Bpe(300).fit(corpus()).digest(), Bpe(300, lower=True).fit(corpus()).digest()]
    assert len(set(made)) == len(made)


def test_training_is_the_same_in_every_process() -> None:
    code = (
        "import sys; sys.path[:0] = ['.', 'tests/data/tokens']\n"
        "from test_tokens import KINDS, SPECIALS, corpus\n"
        "from regard.data.tokens import *\n"
        "more = open('regard/data/text.py', encoding='utf-8').read().split('\\n')\n"
        "print([make().fit(corpus() + more, SPECIALS, 2).digest() for make in KINDS.values()])\n"
        "kinds = (Bpe, Unigram, Wordpiece, Words)\n"
        "print([kind(600, lower=True).fit(more, ['[UNK]']).digest() for kind in kinds])\n"
    )
    answers = set()
    for seed, parallel in (("1", "true"), ("2", "false"), ("3", "true")):
        env = {**os.environ, "PYTHONHASHSEED": seed, "TOKENIZERS_PARALLELISM": parallel}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)
        assert done.returncode == 0, done.stderr
        answers.add(done.stdout)
    assert len(answers) == 1


@pytest.mark.parametrize("kind", ["chars", "words", "unigram", "wordpiece"])
def test_the_unknown(kind: str) -> None:
    assert set(fitted(kind).encode("\u2603")) - {2} <= set(fitted(kind).encode(" "))
    with pytest.raises(DataError, match=r"train\.en:3: .*not"):
        fitted(kind, unknown=False).encode_all(["the", "cat", "the \u2603"], name="train.en")
    if kind in ("chars", "words"):
        with pytest.raises(DataError, match=r"but '\u2603' \(U\+2603\) is not"):
            fitted(kind, unknown=False).encode("\u2603")


@every_kind
def test_half_a_character_is_refused(kind: str) -> None:
    with pytest.raises(DataError, match=r"half a character|not in the vocabulary|is not"):
        fitted(kind, unknown=False).encode("a\ud800")


@every_kind
def test_nothing_to_learn_from(kind: str) -> None:
    if kind == "bytes":
        assert Bytes().fit([]).vocab == 256
        return
    for lines in ([], [""], ["", ""]):
        with pytest.raises(DataError, match="must be learned from some"):
            KINDS[kind]().fit(lines, SPECIALS)


@pytest.mark.parametrize(
    ("tokens", "least"),
    [(Bpe(250), 259), (Words(3), None), (Unigram(4), None), (Wordpiece(10), None)],
)
def test_a_vocabulary_too_small(tokens: Tokens, least: int | None) -> None:
    with pytest.raises(UsageError, match=f"at least {least}" if least else "vocab"):
        tokens.fit(corpus(), SPECIALS)


@pytest.mark.parametrize("specials", [["<s>", "<s>"], [""], ["<extra_id_4>"]])
def test_bad_names_of_specials(specials: list[str]) -> None:
    with pytest.raises(UsageError, match="different names"):
        Chars().fit(["a"], specials)


def test_asking_for_what_is_not_there() -> None:
    with pytest.raises(UsageError, match="chars tokens must be fitted or loaded"):
        Chars().encode("a")
    with pytest.raises(
        UsageError, match=r"no special token '<S>', only <s>, </s>, <unk>\. Did you mean '<s>'\?"
    ):
        fitted("chars").id("<S>")
    with pytest.raises(UsageError, match="no special token '<extra_id_3>'"):
        fitted("chars").sentinel(3)


@every_kind
def test_pieces_can_be_shown(kind: str) -> None:
    tokens = fitted(kind)
    assert [tokens.piece(n) for n in (0, 2, tokens.vocab - 1)] == ["<s>", "<unk>", "<extra_id_0>"]
    shown = "".join(tokens.piece(n) for n in tokens.encode("cats")).strip()
    assert shown in ("cats", "catcats")
    assert all(tokens.piece(n).isprintable() or tokens.piece(n) for n in range(tokens.vocab))


def test_which_ids_go_on_with_a_word() -> None:
    for kind in KINDS:
        tokens = fitted(kind)
        ids = tokens.encode("the newest m\u00e4dchen")
        words = "".join(
            " " * (not tokens.continues(n)) + tokens.piece(n).strip().replace("##", "") for n in ids
        )
        if kind == "words":
            assert words.split() == ["the", "newest", "m\u00e4dchen"]
        elif kind in ("bpe", "unigram", "wordpiece"):
            assert len(words.split()) <= 3 or kind == "wordpiece"
        assert not any(tokens.continues(n) for n in (0, 1, tokens.sentinel(0)))


@pytest.mark.parametrize("make", [Words, Bpe, Unigram, Wordpiece])
def test_lower(make: type[Words]) -> None:
    tokens = make(300, lower=True).fit(corpus(), SPECIALS)
    assert tokens.encode("The CAT STRA\u00dfE") == tokens.encode("the cat stra\u00dfe")
    assert tokens.decode(tokens.encode("The CAT M\u00c4DCHEN")) == "the cat m\u00e4dchen"
    assert make(300).fit(corpus(), SPECIALS).encode("THE") != tokens.encode("the")


@every_kind
def test_broken_files_are_refused(kind: str, tmp_path: Path) -> None:
    fitted(kind).save(tmp_path)
    good = (tmp_path / "tokens.json").read_bytes()
    about = json.loads(good)
    changes: list[object] = [
        [],
        {},
        {**about, "kind": "byts"},
        {**about, "kind": "bytes", "options": {"file": "x"}},
        {**about, "options": {"vocabb": 3}},
        {**about, "specials": None},
        {**about, "last": "many"},
    ]
    if "texts" in about:
        changes += [{**about, "texts": ["a", "a"]}, {**about, "texts": 4}]
    for change in changes:
        (tmp_path / "tokens.json").write_text(json.dumps(change))
        with pytest.raises(DataError, match=r"tokens\.json: these are not saved tokens"):
            load_tokens(tmp_path)
    for data in (good[: len(good) // 2], b"\xff\xfe", b"[" * 100_000):
        (tmp_path / "tokens.json").write_bytes(data)
        with pytest.raises(DataError, match="these are not saved tokens"):
            load_tokens(tmp_path)
    if kind in ("bpe", "unigram", "wordpiece"):
        (tmp_path / "tokens.json").write_bytes(good)
        whole = (tmp_path / "tokenizer.json").read_bytes()
        for data in (whole[:-100], b"{}", b"", whole.replace(b"<s>", b"<q>")):
            (tmp_path / "tokenizer.json").write_bytes(data)
            with pytest.raises(DataError, match="these are not saved tokens"):
                load_tokens(tmp_path)
        (tmp_path / "tokenizer.json").unlink()
        with pytest.raises(DataError, match="these are not saved tokens"):
            load_tokens(tmp_path)
    with pytest.raises(DataError, match=r"must be a tokens\.json"):
        load_tokens(tmp_path / "nowhere")
