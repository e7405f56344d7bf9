"""Text files, read so that line n of one file is line n of every other program's idea of it.

Lines end at the byte `\\n` and nowhere else: a carriage return, U+0085, U+2028, a form feed or a vertical tab
in the middle of a sentence is part of the sentence. (`str.splitlines` and text-mode `open` think otherwise,
and shift every later line of a parallel corpus by one.) The number of lines is `wc -l`, plus one if the last
line has no line end.
"""

from __future__ import annotations

import codecs
import contextlib
import difflib
import gzip
import os
import zlib
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import IO, Literal, NoReturn, cast

from regard.errors import DataError, DiskError, UsageError

LONGEST = 64 * 2**20
"""Bytes one line may have. A line is held whole, so this bounds the memory that a wrong file can take."""

FOREIGN = (b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00", b"PK\x03\x04")
"""How zstd, xz and zip files begin. No text begins so."""

Name = str | os.PathLike[str]


class Lines(Iterator[str]):
    """The lines of a text file, one after the other, without their line ends.

    `number` counts the lines read so far; `replaced` those in which bytes that are no UTF-8 became U+FFFD
    (with errors="replace"); `ended` says whether the line just read had a line end, as all but the last must.
    """

    def __init__(self, path: Name, errors: Literal["strict", "replace"] = "strict") -> None:
        if errors not in ("strict", "replace"):
            raise UsageError(f"errors must be strict or replace, but is {errors!r}.")
        self.path = Path(path)
        self.errors = errors
        self.number = 0
        self.replaced = 0
        self.ended = True
        self._lines = self._read()

    def __next__(self) -> str:
        return next(self._lines)

    def close(self) -> None:
        """Let go of the file before its end is reached."""
        self._lines.close()

    def _read(self) -> Generator[str]:
        with open_bytes(self.path) as file:
            while line := file.readline(LONGEST + 2):
                self.number += 1
                yield self._text(line)

    def _text(self, line: bytes) -> str:
        start, end = 0, len(line)
        if self.number == 1:
            if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                self._refuse(0, "this is UTF-16 or UTF-32; convert it: iconv -f UTF-16 -t UTF-8")
            if line.startswith(codecs.BOM_UTF8):
                start = len(codecs.BOM_UTF8)
        self.ended = line.endswith(b"\n")
        end -= self.ended
        if end > LONGEST:
            self._refuse(LONGEST, f"a line may have {LONGEST} bytes, but this one goes on; is it text?")
        end -= line.endswith(b"\r", start, end)
        if (nul := line.find(0)) >= 0:
            self._refuse(nul, "a NUL byte, which text never has; is it UTF-16, to be converted, or no text?")
        try:
            return str(memoryview(line)[start:end], "utf-8")
        except UnicodeDecodeError as error:
            if self.errors == "replace":
                self.replaced += 1
                return str(memoryview(line)[start:end], "utf-8", "replace")
            at = start + error.start
            self._refuse(at, f"byte 0x{line[at]:02x} is no UTF-8 ({error.reason}); save the file as UTF-8")

    def _refuse(self, byte: int, why: str) -> NoReturn:
        raise DataError(f"{self.path}:{self.number}:{byte + 1}: {why}{'' if why.endswith('?') else '.'}")


def read_lines(path: Name, errors: Literal["strict", "replace"] = "strict", need: bool = False) -> Lines:
    """The lines of a UTF-8 text file, plain or gzipped, as an iterator that also counts them.

    One carriage return before a line end is dropped (files from Windows), a byte order mark only at the very
    start of the file. What is no text raises DataError as `file:line:byte: why`, the byte from 1 in its line.

    Options:
      errors  "strict" refuses bytes that are no UTF-8; "replace" reads them as U+FFFD and counts such lines.
      need    refuse, at once, a file without any line.
    """
    if need:
        with open_bytes(path) as file:
            if file.read(len(codecs.BOM_UTF8) + 1) in (b"", codecs.BOM_UTF8):
                raise DataError(f"{path}: the file is empty, but at least one line of text is needed.")
    return Lines(path, errors)


def read_text(path: Name, size: int = 2**20) -> Iterator[str]:
    """A text file in blocks of whole lines, each of about `size` characters, line ends included as "\\n".

    Joined, the blocks are the file's text, without a byte order mark and without the "\\r" of "\\r\\n".
    """
    block: list[str] = []
    held = 0
    lines = read_lines(path)
    for line in lines:
        block.append(line + "\n" if lines.ended else line)
        held += len(block[-1])
        if held >= size:
            yield "".join(block)
            block, held = [], 0
    if block:
        yield "".join(block)


def count_lines(path: Name) -> int:
    """How many lines `read_lines` would give, without decoding any."""
    count, last = 0, b"\n"
    with open_bytes(path) as file:
        while chunk := file.read(2**20):
            count += chunk.count(b"\n")
            last = chunk[-1:]
    return count + (last != b"\n")


def write_lines(path: Name, lines: Iterable[str]) -> int:
    """Write lines as UTF-8, each ended by "\\n"; return their number. The file appears whole or not."""
    count = 0
    with replacing(path) as file:
        for line in lines:
            count += 1
            if "\n" in line:
                raise DataError(f"{path}:{count}: a line must have no line break in it: {line[:60]!r}.")
            try:
                file.write(line.encode() + b"\n")
            except UnicodeEncodeError as error:
                half = line[error.start]
                raise DataError(f"{path}:{count}: {half!r} is half a character, no UTF-8.") from None
    return count


@contextlib.contextmanager
def replacing(path: Name) -> Iterator[IO[bytes]]:
    """A file that takes the place of `path` at once if the block ends well, and leaves no trace if not."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        if isinstance(error, DiskError):
            raise
        said = error.strerror or error
        raise DiskError(f"{path} could not be written: {said}; what was there is unchanged.") from error
    finally:
        draft.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk: only then does a rename survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def open_bytes(path: Name) -> Iterator[IO[bytes]]:
    """The bytes of a data file, unpacked if gzipped; whatever goes wrong is one DataError with its name."""
    path = Path(path)
    try:
        with path.open("rb") as raw:
            head = raw.peek(10)[:10]
            if head.startswith(FOREIGN) or (head.startswith(b"BZh") and head.endswith(b"1AY&SY")):
                raise DataError(f"{path}: only plain and gzipped text can be read; unpack this file first.")
            if head[:2] == b"\x1f\x8b":
                with gzip.GzipFile(fileobj=raw) as unpacked:
                    yield cast(IO[bytes], unpacked)
            elif not head and path.suffix == ".gz":
                raise EOFError
            else:
                yield raw
    except EOFError:
        raise DataError(f"{path}: the gzipped file was cut off before its end; copy it again.") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: the gzipped file is damaged ({error}); copy it again.") from None
    except FileNotFoundError:
        raise DataError(f"{path}: no such file.{_near(path)}") from None
    except OSError as error:
        raise DataError(f"{path}: the file cannot be read: {error.strerror or error}.") from error


def _near(path: Path) -> str:
    """What the name may have meant."""
    if not path.parent.is_dir():
        return f" There is no folder {path.parent} either."
    near = difflib.get_close_matches(path.name, [p.name for p in path.parent.iterdir()], n=1)
    return f" Did you mean {path.parent / near[0]}?" if near else ""
