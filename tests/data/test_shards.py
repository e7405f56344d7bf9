"""Shards: one long array on disk."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.shards import Shards
from regard.errors import CheckFailed, DataError, DiskError, UsageError


@given(
    st.lists(st.lists(st.integers(0, 70_000), max_size=5), min_size=1, max_size=5).filter(any),
    st.integers(2, 8),
    st.integers(-30, 30),
    st.integers(-30, 30),
)
@settings(max_examples=25, deadline=None)
def test_shards_are_the_list_they_were_written_from(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[int]], size: int, start: int, stop: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "shards"
    flat = [n for row in rows for n in row]
    arrays = (np.array(row, np.int32) for row in rows)
    for form in (rows, arrays, iter(flat), (iter(row) for row in rows)):
        shards = Shards.write(folder, form, size)
        assert len(shards) == len(flat)
        assert shards[:].tolist() == flat
        assert shards[start:stop].tolist() == flat[start:stop]
        assert shards[start:].dtype == np.int64
        assert len(list(folder.glob("*.bin"))) == -(-len(flat) // size)
        shards.check()


def test_small_ids_take_two_bytes_and_large_ones_four(tmp_path: Path) -> None:
    shards = Shards.write(tmp_path / "s", [[65535, 1], [65536, 2**32 - 1]], size=2)
    assert [shard["dtype"] for shard in shards.index["shards"]] == ["uint16", "uint32"]
    assert (tmp_path / "s" / "00000.bin").read_bytes() == b"\xff\xff\x01\x00"
    assert shards[1:3].tolist() == [1, 65536]


def test_writing_again_replaces_and_equal_ids_have_equal_digests(tmp_path: Path) -> None:
    first = Shards.write(tmp_path / "a", [[1, 2, 3]], size=2).digest()
    assert Shards.write(tmp_path / "b", [[1], [2, 3]], size=2).digest() == first
    assert Shards.write(tmp_path / "b", [[1, 2, 4]], size=2).digest() != first
    assert Shards.write(tmp_path / "b", [[9]])[:].tolist() == [9]
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["00000.bin", "index.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("rows", [[[1], [-1]], [[2**32]], [["a"]], [[1.5]], [[[1]]], [[True]]])
def test_what_is_no_id_is_refused_and_leaves_nothing(rows: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="ids must be whole numbers"):
        Shards.write(tmp_path / "s", rows)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_old_shards(tmp_path: Path) -> None:
    Shards.write(tmp_path / "s", [[1, 2]])

    def rows() -> Any:
        yield [3]
        raise RuntimeError("the reader died")

    with pytest.raises(RuntimeError, match="the reader died"):
        Shards.write(tmp_path / "s", rows(), size=1)
    assert Shards.open(tmp_path / "s")[:].tolist() == [1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_nothing_but_shards_is_ever_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("dear")
    with pytest.raises(UsageError, match="shards only"):
        Shards.write(tmp_path / "thesis", [[1]])
    (tmp_path / "file").write_text("dear")
    with pytest.raises(UsageError, match="shards only"):
        Shards.write(tmp_path / "file", [[1]])
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "dear"


def test_no_ids_at_all(tmp_path: Path) -> None:
    for rows in ([], [[]], iter([])):
        with pytest.raises(DataError, match="at least one id"):
            Shards.write(tmp_path / "s", rows)


def test_cut_off_and_missing_and_changed_files_are_refused(tmp_path: Path) -> None:
    shards = Shards.write(tmp_path / "s", [list(range(100))], size=60)
    second = tmp_path / "s" / "00001.bin"
    whole = second.read_bytes()
    second.write_bytes(whole[:-1])
    with pytest.raises(DataError, match=r"00001\.bin: 80 bytes are expected, but there are 79"):
        Shards.open(tmp_path / "s")
    second.write_bytes(b"\x07" + whole[1:])
    with pytest.raises(CheckFailed, match=r"00001\.bin: the content is not what the index says"):
        shards.check()
    second.unlink()
    with pytest.raises(DataError, match="but there are 0"):
        Shards.open(tmp_path / "s")
    with pytest.raises(DataError, match="there are none"):
        Shards.open(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"shards": []},
        {"tokens": 3},
        {"shards": None},
        {"file": "../00000.bin"},
        {"file": "/etc/passwd"},
        {"dtype": "object"},
        {"tokens_of": 10**12},
        {"tokens_of": -2},
        {"tokens_of": "2"},
        {"sha256": None},
    ],
)
def test_a_lying_index_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    Shards.write(tmp_path / "s", [[1, 2]])
    path = tmp_path / "s" / "index.json"
    index = json.loads(path.read_bytes())
    for name, value in change.items():
        if name in index:
            index[name] = value
        else:
            index["shards"][0][name.removesuffix("_of")] = value
    path.write_text(json.dumps(index))
    with pytest.raises(DataError, match=r"index\.json: this is no index"):
        Shards.open(tmp_path / "s")
    path.write_text("[" * 100_000)
    with pytest.raises(DataError, match="this is no index"):
        Shards.open(tmp_path / "s")


def test_only_slices(tmp_path: Path) -> None:
    shards = Shards.write(tmp_path / "s", [[1, 2, 3]])
    for where in (1, slice(None, None, 2)):
        with pytest.raises(UsageError, match="by slices"):
            shards[where]  # type: ignore[index]


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(DiskError, match="could not be written"):
            Shards.write(tmp_path / "s", [[1] * 10_000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert list(tmp_path.iterdir()) == []


def test_a_corpus_beyond_memory_streams_through(tmp_path: Path) -> None:
    """200 MB of ids are written and read with far less memory than they take; numpy alone needs 40 MB."""
    code = f"""
import numpy as np
from regard.data.shards import Shards
rows = (np.full(10_000, n % 60_000, np.int64) for n in range(10_000))
shards = Shards.write({str(tmp_path / "s")!r}, rows, size=2**21)
def kilobytes(name):
    return open("/proc/self/status").read().split(name + ":")[1].split()[0]
writing = kilobytes("VmHWM")
total = sum(int(shards[start : start + 1000].sum()) for start in range(0, len(shards), 997_000))
print(len(shards), shards[99_995_000:].tolist() == [9999] * 5000, total,
      writing, kilobytes("RssAnon"))
"""
    root = Path(__file__).parents[2]
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    count, end, total, writing, reading = answer.stdout.split()
    expected = sum(
        (start + n) // 10_000 for start in range(0, 10**8, 997_000) for n in range(1000) if start + n < 10**8
    )
    assert (count, end, int(total)) == ("100000000", "True", expected)
    assert int(writing) <= 150_000
    assert (
        int(reading) <= 80_000
    )  # mapped pages of the files are not ours: the system takes them back at will
