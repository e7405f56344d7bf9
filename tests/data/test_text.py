"""The text reader: line n is line n, and what is no text is refused by file, line and byte."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.text import count_lines, read_lines, read_text, write_lines
from regard.errors import DataError, DiskError, UsageError


def file(folder: Path, data: bytes, name: str = "text.txt") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


TORTURE = {
    "plain": (b"a\nb\n", ["a", "b"]),
    "no final newline": (b"a\nb", ["a", "b"]),
    "byte order mark": (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
    "mark not at the start": (b"a\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
    "two marks": (b"\xef\xbb\xbf\xef\xbb\xbfa\n", ["\ufeffa"]),
    "windows": (b"a\r\nb\r\n", ["a", "b"]),
    "only one carriage return goes": (b"a\r\r\nb\n", ["a\r", "b"]),
    "lone carriage return": (b"a\rb\nc\n", ["a\rb", "c"]),
    "carriage return at the very end": (b"a\nb\r", ["a", "b"]),
    "unicode line breaks": ("a\u2028b\u2029c\u0085d\n".encode(), ["a\u2028b\u2029c\u0085d"]),
    "ascii separators": (b"a\x0bb\x0cc\x1cd\x1de\x1ef\n", ["a\x0bb\x0cc\x1cd\x1de\x1ef"]),
    "empty lines": (b"\n\n\n", ["", "", ""]),
    "only a carriage return": (b"\r\n\r", ["", ""]),
    "spaces stay": (b" a \n\t\n", [" a ", "\t"]),
    "astral": ("\U0001f600 e\u0301\n".encode(), ["\U0001f600 e\u0301"]),
    "noncharacter": ("\uffff\n".encode(), ["\uffff"]),
    "empty": (b"", []),
}


@pytest.mark.parametrize("name", TORTURE)
def test_lines_of_the_torture_corpus(name: str, tmp_path: Path) -> None:
    data, lines = TORTURE[name]
    plain = file(tmp_path, data)
    packed = file(tmp_path, gzip.compress(data), "text.txt.gz")
    assert list(read_lines(plain)) == lines
    assert list(read_lines(packed)) == lines
    assert count_lines(plain) == count_lines(packed) == len(lines)


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (b"ok\nab\xffc\n", "text.txt:2:3: byte 0xff"),
        (b"\xef\xbb\xbfab\xff\n", "text.txt:1:6: byte 0xff"),  # the mark's three bytes count
        (b"\xc0\xaf\n", "text.txt:1:1: byte 0xc0"),  # overlong slash
        (b"a\xed\xa0\x80\n", "text.txt:1:2: byte 0xed"),  # surrogate
        (b"a\n\xf4\x90\x80\x80\n", "text.txt:2:1: byte 0xf4"),  # beyond U+10FFFF
        (b"abc\xe2\x82", "text.txt:1:4: byte 0xe2"),  # cut inside a character
        (b"abc\xe2\n\x82\xac\n", "text.txt:1:4: byte 0xe2"),  # a newline inside a character
        (b"a\nb\0c\n", "text.txt:2:2: a NUL byte"),
        ("h\u00e9llo\n".encode("utf-16"), "text.txt:1:1: this is UTF-16"),
        ("h\u00e9llo\n".encode("utf-16-be"), "text.txt:1:1: a NUL byte"),
        ("h\u00e9llo\n".encode("utf-32"), "text.txt:1:1: this is UTF-16 or UTF-32"),
    ],
)
def test_what_is_no_text_is_refused_by_file_line_byte(data: bytes, where: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        list(read_lines(file(tmp_path, data)))
    assert where in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lines_before_the_bad_one_are_given(tmp_path: Path) -> None:
    lines = read_lines(file(tmp_path, b"a\nb\n\xff\n"))
    assert [next(lines), next(lines)] == ["a", "b"]
    with pytest.raises(DataError):
        next(lines)


def test_replace_counts_the_lines_it_mended(tmp_path: Path) -> None:
    lines = read_lines(file(tmp_path, b"a\n\xff\xfeb\nc\n\xe2\x82\n"), errors="replace")
    assert list(lines) == ["a", "\ufffd\ufffdb", "c", "\ufffd"]
    assert lines.replaced == 2
    assert lines.number == 4
    with pytest.raises(DataError, match="NUL"):
        list(read_lines(file(tmp_path, b"a\0\n"), errors="replace"))
    with pytest.raises(UsageError, match="strict or replace"):
        read_lines(tmp_path / "text.txt", errors="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)])
def test_an_empty_file_is_refused_only_where_lines_are_needed(data: bytes, tmp_path: Path) -> None:
    path = file(tmp_path, data)
    assert "".join(read_lines(path)) == ""
    with pytest.raises(DataError, match=r"text\.txt: the file is empty"):
        read_lines(path, need=True)
    assert list(read_lines(file(tmp_path, b"\n"), need=True)) == [""]


def test_damaged_and_foreign_archives_are_one_sentence(tmp_path: Path) -> None:
    whole = gzip.compress(os.urandom(5000).hex().encode())
    for cut in (1000, len(whole) - 4, 11):
        with pytest.raises(DataError, match="cut off before its end"):
            list(read_lines(file(tmp_path, whole[:cut], "a.gz")))
        with pytest.raises(DataError, match="cut off before its end"):
            count_lines(tmp_path / "a.gz")
    with pytest.raises(DataError, match="cut off before its end"):
        list(read_lines(file(tmp_path, b"", "a.gz")))
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    with pytest.raises(DataError, match="damaged"):
        list(read_lines(file(tmp_path, bytes(flipped), "a.gz")))
    for packed in (b"\x28\xb5\x2f\xfd rest", bz2.compress(b"a\n"), lzma.compress(b"a\n")):
        with pytest.raises(DataError, match="unpack this file first"):
            list(read_lines(file(tmp_path, packed, "a.packed")))
    assert list(read_lines(file(tmp_path, b"BZh is how bzip2 begins\n"))) == ["BZh is how bzip2 begins"]


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    file(tmp_path, b"a\n", "train.en")
    with pytest.raises(DataError, match=r"no such file\. Did you mean .*train\.en\?"):
        next(read_lines(tmp_path / "trian.en"))
    with pytest.raises(DataError, match="There is no folder"):
        next(read_lines(tmp_path / "nowhere" / "train.en"))
    with pytest.raises(DataError, match="cannot be read"):
        next(read_lines(tmp_path))


@given(st.lists(st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]))))
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    lines = [line.rstrip("\r") for line in lines]
    if lines:
        lines[0] = lines[0].lstrip("\ufeff")
    path = tmp_path_factory.getbasetemp() / "round.txt"
    assert write_lines(path, lines) == len(lines)
    assert list(read_lines(path)) == lines
    assert count_lines(path) == len(lines)


@given(st.binary(max_size=60), st.integers(1, 20))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_text_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, size: int
) -> None:
    """Against the plainest reading there is: split the bytes, decode each line."""
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_bytes(data)
    body = data.removeprefix(b"\xef\xbb\xbf")
    parts = body.split(b"\n")
    parts = parts if parts[-1] or (data and not body) else parts[:-1]
    try:
        expected = [part.removesuffix(b"\r").decode() for part in parts]
        fine = b"\0" not in data and not data.startswith(
            (b"\xff\xfe", b"\xfe\xff", b"\x1f\x8b", b"PK\x03\x04")
        )
    except UnicodeDecodeError:
        fine = False
    if not fine:
        with pytest.raises(DataError):
            list(read_lines(path))
        return
    assert list(read_lines(path)) == expected
    assert count_lines(path) == len(expected)
    assert "".join(read_text(path, size)) == body.decode().replace("\r\n", "\n").removesuffix("\r")


def test_blocks_of_text_are_whole_lines(tmp_path: Path) -> None:
    path = file(tmp_path, b"abc\nd\n\nefghij\nk")
    assert list(read_text(path, 5)) == ["abc\nd\n", "\nefghij\n", "k"]
    assert list(read_text(path)) == ["abc\nd\n\nefghij\nk"]


def test_a_failed_write_leaves_the_old_file_and_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    write_lines(path, ["old"])
    with pytest.raises(DataError, match=r"out\.txt:2: a line must have no line break"):
        write_lines(path, ["new", "a\nb"])
    with pytest.raises(DataError, match=r"out\.txt:1: .* half a character"):
        write_lines(path, ["\ud800"])
    assert path.read_bytes() == b"old\n"
    assert [p.name for p in tmp_path.iterdir()] == ["out.txt"]
    with pytest.raises(DiskError, match="could not be written"):
        write_lines(tmp_path / "no" / "out.txt", ["a"])


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    write_lines(path, ["old"])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that write(2) fails instead of killing us
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(DiskError, match="what was there is unchanged"):
            write_lines(path, ["x" * 1000] * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert path.read_bytes() == b"old\n"
    assert [p.name for p in tmp_path.iterdir()] == ["out.txt"]


def test_a_line_of_50_megabytes_takes_memory_for_one_line(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    with path.open("wb") as out:
        for _ in range(50):
            out.write(b"x" * 2**20)
        out.write(b"\nend\n")
    code = (
        "from regard.data.text import read_lines\n"
        f"lengths = [len(line) for line in read_lines({str(path)!r})]\n"
        "print(lengths, open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    )
    root = Path(__file__).parents[2]
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    ).stdout
    lengths, kilobytes = answer.rsplit(" ", 1)
    assert lengths == f"[{50 * 2**20}, 3]"
    assert int(kilobytes) <= 300_000


def test_an_endless_line_is_refused_and_not_held(tmp_path: Path) -> None:
    path = tmp_path / "endless.gz"
    with gzip.open(path, "wb", compresslevel=1) as out:
        for _ in range(80):
            out.write(b"x" * 2**20)
    with pytest.raises(DataError, match="a line may have 67108864 bytes"):
        next(read_lines(path))
