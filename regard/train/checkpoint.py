"""Checkpoints: one directory is one transaction, complete and verified or not there at all.

    checkpoints/step-000800/  model.safetensors  optim.safetensors  rng.safetensors  (ema, memory, extra)
                              state.json         where the run stands
                              manifest.json      size and sha256 of each file, and what must not change

Written under `.tmp-<step>-<pid>`, each file and the directory flushed to the disk, then renamed: a run killed
at any instant leaves either the old set or the new one. The newest is found by looking, never by a pointer
that could be ahead of the data. No pickle anywhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from regard.errors import CheckFailed
from regard.train.disk import dump, sha256, sync, writing

NAME = re.compile(r"step-(\d{6,})")
MANIFEST = "manifest.json"
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """One that has been verified."""

    folder: Path
    step: int
    state: dict[str, Any]
    facts: dict[str, Any]

    def tensors(self, name: str) -> Tensors:
        """The tensors of one of its files: model, optim, rng, ema, memory or extra."""
        return load_file(self.folder / f"{name}.safetensors")

    def has(self, name: str) -> bool:
        """Is there such a file?"""
        return (self.folder / f"{name}.safetensors").exists()


def place(folder: Path, step: int) -> Path:
    """The directory of one step's checkpoint."""
    return folder / f"step-{step:06d}"


def write(
    folder: Path, step: int, tensors: dict[str, Tensors], state: dict[str, Any], facts: dict[str, Any]
) -> Path:
    """Write one checkpoint into `folder` and return its directory; on any failure nothing of it is left."""
    needed = sum(t.numel() * t.element_size() for part in tensors.values() for t in part.values())
    temporary, final = folder / f".tmp-{step}-{os.getpid()}", place(folder, step)
    with writing(folder, needed):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            temporary.mkdir()
            for name, part in tensors.items():
                path = temporary / f"{name}.safetensors"
                save_file({key: t.contiguous() for key, t in part.items()}, path)
                path.chmod(0o644)  # safetensors makes its files 0600
            (temporary / "state.json").write_text(dump(state), encoding="utf-8")
            _write_manifest(temporary, step, facts)
            for path in temporary.iterdir():
                sync(path)
            sync(temporary)
            if final.exists():  # an older try at the same step, which did not verify or was resumed from
                _remove(final)
            temporary.rename(final)
            sync(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return final


def _write_manifest(folder: Path, step: int, facts: dict[str, Any]) -> None:
    files = {p.name: {"bytes": p.stat().st_size, "sha256": sha256(p)} for p in sorted(folder.iterdir())}
    data = {"step": step, "files": files, **facts}
    data["sha256"] = hashlib.sha256(dump(data).encode()).hexdigest()
    (folder / MANIFEST).write_text(dump(data), encoding="utf-8")


def verify(folder: Path) -> Checkpoint:
    """Check every file of a checkpoint against its manifest; CheckFailed names the first that is wrong."""
    data = _read_manifest(folder / MANIFEST)
    for name, told in data["files"].items():
        path = folder / name
        if not path.is_file():
            raise CheckFailed(f"{path} is missing, though {MANIFEST} names it.")
        if path.stat().st_size != told["bytes"]:
            raise CheckFailed(f"{path} must have {told['bytes']} bytes, but has {path.stat().st_size}.")
        if sha256(path) != told["sha256"]:
            raise CheckFailed(f"{path} is damaged: its sha256 is not the one in {MANIFEST}.")
    for path in folder.iterdir():
        if path.name != MANIFEST and path.name not in data["files"]:
            raise CheckFailed(f"{path} does not belong to the checkpoint: {MANIFEST} does not name it.")
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    facts = {k: v for k, v in data.items() if k not in ("step", "files")}
    return Checkpoint(folder, data["step"], state, facts)


def _read_manifest(path: Path) -> dict[str, Any]:
    """The manifest, if each of its own bytes is as it was written."""
    try:
        text = path.read_text(encoding="utf-8")
        data: dict[str, Any] = json.loads(text)
        own = data.pop("sha256")
        whole = hashlib.sha256(dump(data).encode()).hexdigest() == own
        if whole and dump(data | {"sha256": own}) == text:
            return data
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise CheckFailed(f"{path} cannot be read: {error}.") from None
    raise CheckFailed(f"{path} is damaged: it does not match its own sha256.")


def steps(folder: Path) -> list[int]:
    """The steps that have a directory here, verified or not, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(int(found[1]) for path in folder.iterdir() if (found := NAME.fullmatch(path.name)))


def newest(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that verifies; damaged ones are passed over with a warning."""
    return good(folder, reversed(steps(folder)), warn)


def good(folder: Path, candidates: Iterable[int], warn: Callable[[str], None]) -> Checkpoint | None:
    """The first of some steps whose checkpoint verifies."""
    for step in candidates:
        try:
            return verify(place(folder, step))
        except CheckFailed as error:
            warn(f"{error} Another checkpoint is used instead.")
    return None


def sweep(run: Path) -> None:
    """Remove what killed writers left in a run folder. For the holder of its lock: nobody else writes."""
    for pattern in ("checkpoints/.tmp-*", ".model.new-*", ".model.old-*"):
        for path in run.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)
    for pattern in (".probe-*", ".summary.json-*", ".nonfinite-*"):
        for path in run.glob(pattern):
            path.unlink(missing_ok=True)


def prune(folder: Path, keep: Iterable[int]) -> None:
    """Remove all checkpoints but these steps."""
    kept = set(keep)
    with writing(folder):
        for step in steps(folder):
            if step not in kept:
                _remove(place(folder, step))


def _remove(path: Path) -> None:
    """Out of sight in one instant, then deleted: a kill in between leaves no half checkpoint in its place."""
    away = path.with_name(f".tmp-gone-{path.name}-{os.getpid()}")
    path.rename(away)
    shutil.rmtree(away)
