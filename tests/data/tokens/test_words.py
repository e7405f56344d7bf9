"""Words and how they are written together again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.tokens import Words
from regard.data.tokens.words import split


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Two men, (walking).", "Two men , ( walking ) ."),
        ("don't re-enter 'now'", "don't re-enter ' now '"),
        ("rock'n'roll -- 3.5%", "rock'n'roll - - 3 . 5 %"),
        ("a\u2028b\x0bc\u3000d", "a b c d"),
        (
            "\u0928\u092e\u0938\u094d\u0924\u0947 \u0939\u093f\u0928\u094d\u0926\u0940",
            None,
        ),  # vowel signs stay in their words
        ("cafe\u0301 na\u00efve", "cafe\u0301 na\u00efve"),
        ("\U0001f600\U0001f600 ok", "\U0001f600 \U0001f600 ok"),
        ("  ", ""),
        ("-'-", "- ' -"),
    ],
)
def test_split(text: str, words: str | None) -> None:
    assert split(text) == (text if words is None else words).split()


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_split_loses_only_white_space(text: str) -> None:
    assert "".join(split(text)) == "".join(text.split())


def test_the_most_frequent_words_then_the_alphabet() -> None:
    tokens = Words(6).fit(["b a c", "c d", "e"], ["<s>", "<unk>"])
    assert [tokens.piece(n) for n in range(tokens.vocab)] == ["<s>", "<unk>", "c", "a", "b", "d"]
    assert tokens.encode("e a <s>") == [1, 3, 1, 1, 1]


def test_sentences_are_written_as_people_do() -> None:
    text = "Two men (and a dog) don't walk: they run, 100%!"
    tokens = Words().fit([text])
    assert tokens.decode(tokens.encode(text)) == text
    stream = tokens.stream()
    assert [stream.push(n) for n in tokens.encode("a dog, they")] == ["a", " dog", ",", " they"]
