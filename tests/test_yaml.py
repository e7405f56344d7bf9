"""The strict reader: what it reads, what it refuses, and where it says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.strict_yaml import FormError, dump, parse, read_document


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("5.0e-3", 5e-3),
        ("1E6", 1e6),
        (".5", 0.5),
        ("-3", -3),
        ("007", 7),
        ("0o17", 15),
        ("0x1F", 31),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
        ("12:30:00", "12:30:00"),
        ("1_000", "1_000"),
        ("2021-03-03", "2021-03-03"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("'1e-4'", "1e-4"),
        ('"true"', "true"),
        ("1.2.3", "1.2.3"),
        ("e5", "e5"),
        ("[1, no, {a: 2}]", [1, "no", {"a": 2}]),
    ],
)
def test_words_as_yaml_1_2_reads_them(text: str, value: Any) -> None:
    found = parse(f"key: {text}").data["key"]
    assert found == value and type(found) is type(value)


def test_keys_are_texts() -> None:
    assert parse("no: 1\n1: 2\ntrue: 3").data == {"no": 1, "1": 2, "true": 3}


def test_every_path_knows_its_line() -> None:
    lines = parse(
        "model:\n  system: gpt\n  change:\n    a.b: 1\ntask: {kind: dates,\n  seed: 3}\nlist:\n- x\n- y: 1\n"
    ).lines
    assert lines["model.system"] == 2 and lines["model.change.a.b"] == 4
    assert lines["task.kind"] == 5 and lines["task.seed"] == 6
    assert lines["list.1"] == 9 and lines["list.1.y"] == 9


BOMB = "a: &a [x, x]\n" + "\n".join(
    f"{b}: &{b} [*{a}, *{a}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: the key 'a' was already given on line 1"),
        ("m:\n  x: 1\n  x: 1", "line 3: the key 'x' was already given on line 2"),
        ("a: &x 1\nb: *x", "line 1: anchors are not allowed"),
        ("a: *x", "line 1: aliases are not allowed"),
        (BOMB, "line 1: anchors are not allowed"),
        ("a: 1\nb: !!python/object/apply:os.system ['true']", "line 2: tags are not allowed"),
        ("a: !!python/name:os.system", "tags are not allowed"),
        ("a: !env HOME", "tags are not allowed"),
        ("a: !!str 1", "tags are not allowed"),
        ("[" * 10_000, "levels are allowed"),
        ("{a: " * 60, "levels are allowed"),
        ("a: 1\n---\nb: 2", "line 2: one document"),
        ("a: .nan", "must be finite"),
        ("a: 1\nb: 1e999", "line 2: numbers must be finite"),
        ("a: " + "9" * 5000, "5000 digits"),
        ("? [a]\n: b", "a key must be a word"),
        ("a: [1\n", "no valid YAML"),
        ("a: \x07", "no valid YAML"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_line(text: str, says: str) -> None:
    with pytest.raises(FormError) as caught:
        parse(text, "run.yaml")
    assert says in str(caught.value) and str(caught.value).startswith("run.yaml")


def test_files(tmp_path: Path) -> None:
    data = {"train": {"lr": 1e-4, "name": "no"}, "list": [1, None, True]}
    (tmp_path / "a.json").write_text(json.dumps(data))
    (tmp_path / "a.yaml").write_text(
        "\ufefftrain: {lr: 1e-4, name: no}\r\nlist: [1, ~, true]\r\n", encoding="utf-8"
    )
    (tmp_path / "a.toml").write_text('list = [1, 2]\n[train]\nlr = 1e-4\nname = "no"\n')
    assert read_document(tmp_path / "a.json").data == data
    assert read_document(tmp_path / "a.yaml").data == data
    assert read_document(tmp_path / "a.toml").data == {"train": data["train"], "list": [1, 2]}


@pytest.mark.parametrize(
    ("name", "raw", "says"),
    [
        ("a.json", b'{"a": 1, "a": 2}', "twice"),
        ("a.json", b'{"a": NaN}', "finite"),
        ("a.json", b'{"a": 1e999}', "finite"),
        ("a.json", b'{"a":\n', "line 2"),
        ("a.json", b"[" * 100_000, "levels"),
        ("a.json", b'{"a":' * 60 + b"1" + b"}" * 60, "levels"),
        ("a.toml", b"a = 2021-03-03", "quotes"),
        ("a.toml", b"a = nan", "finite"),
        ("a.toml", b"a = 1\na = 2", "TOML"),
        ("a.yaml", b"a: 1\nb: \xff", "line 2: must be UTF-8"),
        ("a.yaml", b"a: " + b"x" * 1_000_001, "larger"),
    ],
)
def test_hostile_files(tmp_path: Path, name: str, raw: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(FormError, match=says):
        read_document(tmp_path / name)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(FormError, match="cannot be read"):
        read_document(tmp_path / "none.yaml")
    with pytest.raises(FormError, match="cannot be read"):
        read_document(tmp_path)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab1-: no", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abcd", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abcd", min_size=1, max_size=3), plain, max_size=4))
def test_json_written_inline_reads_back_the_same(data: dict[str, Any]) -> None:
    """JSON is YAML: what a program writes as JSON means the same here."""
    assert parse(json.dumps(data)).data == data


words = st.sampled_from(
    ["1e-4", "no", "12:30:00", "0o7", "~", "", ".inf", "true", "- a", "a: b", "*x", "007", "#", "1_0"]
)
anything = st.dictionaries(words | st.text(max_size=5), plain | words | st.text(max_size=8), max_size=5)


@given(anything)
def test_what_is_written_reads_back_the_same(data: dict[str, Any]) -> None:
    assert parse(dump(data)).data == data


def test_shared_values_are_written_out() -> None:
    shared = {"a": [1, 2]}
    assert parse(dump({"x": shared, "y": shared})).data == {"x": shared, "y": shared}
