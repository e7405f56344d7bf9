"""Token ids on disk: a corpus larger than memory, read as if it were one long array.

A folder holds numbered files of bare little-endian numbers, of 2 bytes where all ids of the file fit and of 4
otherwise, and index.json, which is written last and says what must be there:

    {"format": "regard shards 1", "tokens": 7, "shards": [{"file": "00000.bin", "dtype": "uint16",
     "tokens": 7, "bytes": 14, "sha256": "..."}]}

The files are mapped and not read: opening takes no time, and memory holds only what is looked at.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.text import Name, sync_folder
from regard.errors import CheckFailed, DataError, DiskError, UsageError

FORMAT = "regard shards 1"
NUMBERS: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
Numbers = NDArray[np.int64]


class Shards:
    """One long row of ids on disk: `len(shards)`, `shards[a:b]`. Made by `write`, used again by `open`."""

    def __init__(self, folder: Path, index: dict[str, Any]) -> None:
        self.folder = folder
        self.index = index
        sizes = [shard["tokens"] for shard in index["shards"]]
        self._starts: Numbers = np.cumsum([0, *sizes], dtype=np.int64)
        self._maps: dict[int, NDArray[Any]] = {}

    @staticmethod
    def write(folder: Name, rows: Iterable[Iterable[int] | Numbers | int], size: int = 2**24) -> Shards:
        """Write rows of ids, or a plain stream of ids, one after the other; memory holds one shard at a time.

        The folder appears whole or not at all; shards that were there before are replaced.

        Options:
          size  ids in one file.
        """
        folder = Path(folder)
        _may_replace(folder)
        draft = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        try:
            draft.mkdir(parents=True)
            shards = [_save(draft, n, ids) for n, ids in enumerate(_blocks(rows, size))]
            if not shards:
                raise DataError(f"{folder}: there must be at least one id to write, but there is none.")
            index = {"format": FORMAT, "tokens": sum(shard["tokens"] for shard in shards), "shards": shards}
            _put(draft / "index.json", json.dumps(index, indent=1).encode())
            sync_folder(draft)
            if folder.exists():
                shutil.rmtree(folder)
            draft.rename(folder)
            sync_folder(folder.parent)
        except OSError as error:
            raise DiskError(f"{folder} could not be written: {error.strerror or error}.") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return Shards.open(folder)

    @staticmethod
    def open(folder: Name) -> Shards:
        """The shards in a folder. A file that is missing or not as long as the index says is refused."""
        folder = Path(folder)
        try:
            index = json.loads((folder / "index.json").read_bytes())
            _understood(index)
        except FileNotFoundError:
            raise DataError(
                f"{folder}: there must be shards with an index.json, but there are none."
            ) from None
        except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise DataError(f"{folder / 'index.json'}: this is no index of shards: {error}.") from None
        for shard in index["shards"]:
            path = folder / shard["file"]
            found = path.stat().st_size if path.is_file() else 0
            if found != shard["bytes"]:
                said = f"{shard['bytes']} bytes are expected, but there are {found}"
                raise DataError(f"{path}: {said}; the file was cut off, so make the shards again.")
        return Shards(folder, index)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, where: slice) -> Numbers:
        """A copy of the ids from a to b, as int64."""
        if not isinstance(where, slice) or where.step not in (None, 1):
            raise UsageError(f"shards are read by slices such as shards[10:20], but {where!r} was asked for.")
        start, stop, _ = where.indices(len(self))
        if start >= stop:
            return np.empty(0, np.int64)
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        out = np.empty(stop - start, np.int64)
        for n in range(first, len(self._starts) - 1):
            low, high = max(start, int(self._starts[n])), min(stop, int(self._starts[n + 1]))
            if low >= high:
                break
            offset = int(self._starts[n])
            out[low - start : high - start] = self._map(n)[low - offset : high - offset]
        return out

    def digest(self) -> str:
        """The sha256 of all ids, by the sums in the index; the files are not read again."""
        sums = "".join(shard["sha256"] for shard in self.index["shards"])
        return hashlib.sha256(sums.encode()).hexdigest()

    def check(self) -> None:
        """Read every file and compare its sum with the index."""
        for shard in self.index["shards"]:
            with (self.folder / shard["file"]).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != shard["sha256"]:
                path = self.folder / shard["file"]
                raise CheckFailed(f"{path}: the content is not what the index says; make the shards again.")

    def _map(self, n: int) -> NDArray[Any]:
        if n not in self._maps:
            shard = self.index["shards"][n]
            self._maps[n] = np.memmap(self.folder / shard["file"], NUMBERS[shard["dtype"]], "r")
        return self._maps[n]


def _blocks(rows: Iterable[Any], size: int) -> Iterator[Numbers]:
    """The ids of all rows in blocks of exactly `size`, the last one shorter."""
    if size < 1:
        raise UsageError(f"size of a shard must be at least 1, but is {size}.")
    held: list[Numbers] = []
    count = 0
    for ids in _arrays(rows):
        held.append(ids)
        count += len(ids)
        while count >= size:
            joined = np.concatenate(held)
            yield joined[:size]
            held, count = [joined[size:]], count - size
    if count:
        yield np.concatenate(held)


def _arrays(rows: Iterable[Any]) -> Iterator[Numbers]:
    """Rows as arrays; a plain stream of ids is gathered into rows first."""
    rows = iter(rows)
    row: Any
    for row in rows:
        if isinstance(row, int | np.integer):
            stream = chain([row], rows)
            while block := list(islice(stream, 2**16)):
                yield _checked(np.asarray(block))
            return
        yield _checked(np.asarray(row if isinstance(row, np.ndarray | list | tuple) else list(row)))


def _checked(ids: NDArray[Any]) -> Numbers:
    if not len(ids):
        return np.empty(0, np.int64)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= 2**32:
        raise DataError(
            f"ids must be whole numbers from 0 to {2**32 - 1}, but {ids[:8].tolist()} were given."
        )
    return ids.astype(np.int64)


def _save(folder: Path, number: int, ids: Numbers) -> dict[str, Any]:
    dtype = "uint16" if ids.max() < 2**16 else "uint32"
    data = ids.astype(NUMBERS[dtype]).tobytes()
    name = f"{number:05d}.bin"
    _put(folder / name, data)
    digest = hashlib.sha256(data).hexdigest()
    return {"file": name, "dtype": dtype, "tokens": len(ids), "bytes": len(data), "sha256": digest}


def _put(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _may_replace(folder: Path) -> None:
    """A folder may be replaced only if it is empty or holds shards: nothing else is ever deleted."""
    if folder.exists() and not (folder.is_dir() and all(map(_ours, folder.iterdir()))):
        raise UsageError(f"{folder} must be a new folder or one with shards only; give another one.")


def _ours(path: Path) -> bool:
    return path.name == "index.json" or re.fullmatch(r"\d{5,}\.bin", path.name) is not None


def _understood(index: Any) -> None:
    """Whether the index has everything that is relied upon; file names that lead elsewhere are refused."""
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise ValueError(f"format must be {FORMAT!r}")
    for shard in index["shards"]:
        count = shard["tokens"]
        if not re.fullmatch(r"\d{5,}\.bin", shard["file"]):
            raise ValueError(f"a shard must be called 00000.bin or so, not {shard['file']!r}")
        if (
            not isinstance(count, int)
            or count < 1
            or shard["bytes"] != count * NUMBERS[shard["dtype"]].itemsize
        ):
            raise ValueError(f"the sizes of {shard['file']} must agree")
        if not isinstance(shard["sha256"], str):
            raise ValueError(f"the sum of {shard['file']} must be a text")
    if index["tokens"] != sum(shard["tokens"] for shard in index["shards"]) or not index["shards"]:
        raise ValueError("the number of tokens must be that of all shards")
