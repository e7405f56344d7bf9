"""Files that are whole or not there: fsync, rename, one writer at a time, errors that name the disk."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from regard.errors import DiskError, UsageError


@contextmanager
def writing(path: Path, needed: int = 0) -> Iterator[None]:
    """Turn every failure to write below `path` into a DiskError that says what was needed and is free."""
    try:
        yield
    except DiskError:
        raise
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        wanted = f"{needed:,} bytes needed, " if needed else ""
        raise DiskError(
            f"{path} could not be written ({reason}; {wanted}{free(path):,} bytes free): what was saved "
            "before is intact; make room there, then resume."
        ) from error


def free(path: Path) -> int:
    """Bytes free on the disk of a path, or of its nearest folder that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return 0


def preflight(folder: Path, needed: int) -> None:
    """Refuse before the first step if the folder cannot be written or has less than `needed` bytes free."""
    with writing(folder, needed):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        try:
            probe.write_bytes(b"regard")
            sync(probe)
        finally:
            probe.unlink(missing_ok=True)
    if free(folder) < needed:
        raise DiskError(
            f"{folder} must have room for two checkpoints, {needed:,} bytes, but {free(folder):,} bytes are "
            "free: make room, or choose another folder with --out."
        )


def sync(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk and not only in memory."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, data: Any) -> None:
    """JSON into a new file beside the old one, then renamed over it."""
    with writing(path):
        new = path.with_name(f".{path.name}-{os.getpid()}")
        try:
            new.write_text(dump(data), encoding="utf-8")
            sync(new)
            new.rename(path)
            sync(path.parent)
        finally:
            new.unlink(missing_ok=True)


def dump(data: Any) -> str:
    """JSON in the one form we write, so that a changed byte shows."""
    return json.dumps(data, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def sha256(path: Path) -> str:
    """The sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time may write a run folder. The lock dies with its process, so it is never stale."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(handle, 20).decode("ascii", "replace").strip() or "unknown"
            raise UsageError(
                f"{folder} is being written by another process (pid {owner}): wait for it, stop it, or "
                "choose another folder with --out."
            ) from None
        with writing(folder):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
