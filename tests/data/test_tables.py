"""Tables with named fields."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.tables import read_table
from regard.errors import DataError, UsageError


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_tsv_with_a_header_and_with_named_fields(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", 'text\tlabel\nsaid "no"\t1\n\t0\n')
    assert read_table(path) == [{"text": 'said "no"', "label": "1"}, {"text": "", "label": "0"}]
    assert read_table(path, ["x", "y"])[0] == {"x": "text", "y": "label"}
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert read_table(tmp_path / "a.tsv.gz") == read_table(path)


def test_jsonl_keeps_numbers_as_written(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "a\\tb\\u00e9", "n": 1.50, "ok": true, "more": [1]}\n')
    assert read_table(path, ["n", "text", "ok"]) == [{"n": "1.50", "text": "a\tb\u00e9", "ok": "true"}]
    assert list(read_table(path, ["n", "text"])[0]) == ["n", "text"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.tsv", "a\tb\n1\t2\n1\t2\t3\n", r"a\.tsv:3: 2 fields \(a, b\) are expected, 3 found"),
        ("a.tsv", "a\tb\n1\n", r"a\.tsv:2: 2 fields \(a, b\) are expected, 1 found"),
        ("a.tsv", "a\ta\n1\t2\n", r"a\.tsv:1: the first line must name the columns"),
        ("a.tsv", "a\tb\n", "no row under it"),
        ("a.tsv", "", "the file is empty"),
        ("a.jsonl", '{"a": "x"}\n\n', r"a\.jsonl:2: one JSON object is expected"),
        ("a.jsonl", '{"a": "x"}\n["x"]\n', r"a\.jsonl:2: one JSON object is expected"),
        ("a.jsonl", '{"a": "x", "a": "y"}\n', r"a\.jsonl:1: the field 'a' is there twice"),
        ("a.jsonl", '{"a": NaN}\n', r"a\.jsonl:1: NaN is no JSON"),
        ("a.jsonl", '{"a": null}\n', r"a\.jsonl:1: the field 'a' must be a text or a number, but is null"),
        ("a.jsonl", '{"a": {"b": 1}}\n', r"a\.jsonl:1: the field 'a' must be a text"),
        ("a.jsonl", '{"a": "\\ud800"}\n', r"a\.jsonl:1: the field 'a' has a NUL or half"),
        ("a.jsonl", '{"a": ' + "[" * 100_000 + "\n", r"a\.jsonl:1: "),
    ],
)
def test_bad_tables_name_file_and_line(name: str, text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        read_table(write(tmp_path / name, text))


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"a": "x", "b": "y"}\n{"b": "y"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:2: the field 'a' is missing; there are b"):
        read_table(path, ["a"])


def test_wrong_asking(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a \.tsv or a \.jsonl file"):
        read_table(write(tmp_path / "a.csv", "a,b\n"))
    for fields in ([], ["a", "a"], [""]):
        with pytest.raises(UsageError, match="fields must be different names"):
            read_table(write(tmp_path / "a.tsv", "1\t2\n"), fields)


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(st.lists(st.dictionaries(texts, texts), min_size=1))
@settings(max_examples=100, deadline=None)
def test_jsonl_round_trip(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, str]]) -> None:
    path = tmp_path_factory.getbasetemp() / "round.jsonl"
    for ascii_only in (True, False):
        write(path, "".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows))
        assert read_table(path) == rows
