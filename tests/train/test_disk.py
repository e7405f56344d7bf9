"""A full or unwritable disk: one clear sentence, exit code 74, and everything saved before intact."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from regard.errors import DiskError
from regard.train import checkpoint
from regard.train.disk import preflight, write_json
from tests.train.compare import assert_same
from tests.train.toy import Counting, go, recipe


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=False)
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(folder: Path, leave: int) -> None:
    """Leave only this many bytes free."""
    with (folder / "filler").open("wb") as file:
        file.write(b"x" * (checkpoint_free(folder) - leave))


def checkpoint_free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


class Filling(Counting):
    """A neighbour fills the disk while step 8 is computed."""

    def __init__(self, disk: Path, leave: int) -> None:
        super().__init__()
        self.disk, self.leave = disk, leave

    def loss(self, model: object, batch: object) -> object:  # type: ignore[override]
        if self.calls == 7:
            fill(self.disk, self.leave)
        return super().loss(model, batch)  # type: ignore[arg-type]


@pytest.mark.parametrize("leave", [0, 4096, 40_000, 90_000])
def test_a_disk_that_fills_up_loses_nothing(small: Path, tmp_path: Path, leave: int) -> None:
    """Full at once, in the first file, in the second: the checkpoint before is whole, and the run goes on."""
    options = {"steps": 15, "save_every": 5, "log_every": 1}
    with pytest.raises(DiskError) as raised:
        go(small / "run", Filling(small, leave), **options)
    said = str(raised.value)
    assert str(small / "run") in said and "bytes free" in said and "No space left" in said
    assert raised.value.code == 74
    found = small / "run" / "checkpoints"
    assert checkpoint.steps(found) == [5] and len(list(found.iterdir())) == 1
    checkpoint.verify(found / "step-000005")
    (small / "filler").unlink()
    go(small / "run", resume=True, **options)
    go(tmp_path / "whole", **options)
    assert_same(tmp_path / "whole", small / "run")


def test_too_little_room_is_told_before_the_first_step(small: Path) -> None:
    task = Counting()
    with pytest.raises(DiskError, match=r"room for two checkpoints, [\d,]+ bytes, but [\d,]+ bytes are free"):
        go(small / "run", task, recipe(width=128), steps=2)
    assert task.calls == 0


def test_a_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("not a folder")
    with pytest.raises(DiskError, match="could not be written"):
        go(tmp_path / "run", steps=2)


def test_an_unwritable_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="/proc/nothing could not be written"):
        preflight(Path("/proc/nothing"), 1)


def test_a_folder_removed_while_training_is_told(tmp_path: Path) -> None:
    class Removing(Counting):
        def loss(self, model: object, batch: object) -> object:  # type: ignore[override]
            if self.calls == 3:
                (tmp_path / "run").rename(tmp_path / "away")
                (tmp_path / "run").write_text("in the way")
            return super().loss(model, batch)  # type: ignore[arg-type]

    with pytest.raises(DiskError, match="could not be written"):
        go(tmp_path / "run", Removing(), steps=9, save_every=5)


def test_json_is_replaced_in_one_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "a.json", {"old": 1})

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(DiskError, match="No space left on device"):
        write_json(tmp_path / "a.json", {"new": 2})
    monkeypatch.undo()
    assert (tmp_path / "a.json").read_text() == '{\n "old": 1\n}\n'
    assert len(list(tmp_path.iterdir())) == 1
