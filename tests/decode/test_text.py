"""Text grows by whole characters and stops before stop strings."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from regard.decode.text import Text, cut, pending


def as_bytes(ids: list[int]) -> str:
    return bytes(ids).decode("utf-8", "replace")


def run(pieces: list[str], stop: tuple[str, ...]) -> tuple[list[str], str, bool]:
    """Feed pieces as tokens until a stop; what was said at each token, all of it, and whether it stopped."""
    text = Text(lambda ids: "".join(pieces[i] for i in ids), stop)
    said = []
    for n in range(len(pieces)):
        said.append(text.grow(list(range(n + 1)), last=n == len(pieces) - 1))
        if text.stopped:
            break
    return said, text.said, text.stopped


def test_a_character_comes_whole() -> None:
    text = Text(as_bytes)
    data = list("a\u20acb\U0001f600".encode())
    said = [text.grow(data[: n + 1]) for n in range(len(data))]
    assert said == ["a", "", "", "\u20ac", "b", "", "", "", "\U0001f600"]


def test_what_never_becomes_a_character_is_said_at_the_end() -> None:
    text = Text(as_bytes)
    assert text.grow([97, 0xE2]) == "a"
    assert text.grow([97, 0xE2, 0x82], last=True) == "\ufffd"


def test_a_stop_string_that_spans_tokens_is_never_shown() -> None:
    said, whole, stopped = run(["one", " tw", "o", " <", "end", "> more"], ("<end>",))
    assert said == ["one", " tw", "o", " ", "", ""]
    assert whole == "one two " and stopped


def test_a_false_alarm_is_said_later() -> None:
    said, whole, stopped = run(["x<", "en", "d", "less>"], ("<end>",))
    assert said == ["x", "", "", "<endless>"]
    assert whole == "x<endless>" and not stopped


def test_what_was_held_back_is_said_at_the_end() -> None:
    assert run(["x<", "en"], ("<end>",)) == (["x", "<en"], "x<en", False)


def test_several_stops_the_first_in_the_text_counts() -> None:
    assert run(["a b c d"], ("d", "b c", "c"))[1] == "a "
    assert run(["ab", "c"], ("bcd", "c"))[1] == "ab"


def test_a_stop_inside_one_token_cuts_the_token() -> None:
    assert run(["hello", " wo.rld"], (".",)) == (["hello", " wo"], "hello wo", True)


def test_pending_is_the_longest_beginning_of_a_stop_at_the_end() -> None:
    assert pending("abab", ("ababx", "bx")) == 4
    assert pending("aab", ("abc", "b!")) == 2
    assert pending("abc", ("abc",)) == 0
    assert pending("", ("abc",)) == 0


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.text("ab\n", max_size=4), max_size=12),
    st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3).map(tuple),
)
def test_pieces_add_up_and_nothing_of_a_stop_leaks(pieces: list[str], stop: tuple[str, ...]) -> None:
    said, whole, stopped = run(pieces, stop)
    read = "".join(pieces[: len(said)])
    assert "".join(said) == whole == cut(read, stop)
    assert stopped == any(word in read for word in stop)
    assert not any(word in whole for word in stop)
    shown = ""
    for piece, part in zip(said[:-1], pieces, strict=False):
        shown += piece
        assert whole.startswith(shown), part
