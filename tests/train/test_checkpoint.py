"""Checkpoints: whole or not there, and every damage found."""

from __future__ import annotations

import json
import random
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.errors import CheckFailed, DiskError
from regard.train import checkpoint
from tests.train.compare import assert_same
from tests.train.toy import Counting, go

FACTS = {"threads": 1, "world": 1}


def write(folder: Path, step: int, value: float = 1.0) -> Path:
    tensors = {"model": {"w": torch.full((40,), value)}, "rng": {"cpu": torch.arange(9, dtype=torch.uint8)}}
    return checkpoint.write(folder, step, tensors, {"run": {"step": step}}, FACTS)


def test_written_and_read_back(tmp_path: Path) -> None:
    path = write(tmp_path, 800, 3.5)
    assert path == tmp_path / "step-000800"
    found = checkpoint.verify(path)
    assert (found.step, found.state, found.facts) == (800, {"run": {"step": 800}}, FACTS)
    assert torch.equal(found.tensors("model")["w"], torch.full((40,), 3.5))
    assert found.tensors("rng")["cpu"].dtype == torch.uint8
    assert found.has("rng") and not found.has("ema")
    names = {"model.safetensors", "rng.safetensors", "state.json", "manifest.json"}
    assert {p.name for p in path.iterdir()} == names
    assert {stat.S_IMODE(p.stat().st_mode) for p in path.iterdir()} == {0o644}
    assert not list(tmp_path.glob(".tmp-*"))


def test_each_single_bit_is_watched(tmp_path: Path) -> None:
    """A flipped bit anywhere, in the manifest too, is found."""
    path, chance = write(tmp_path, 1), random.Random(0)
    files = sorted(path.iterdir())
    for _ in range(100):
        file = chance.choice(files)
        whole = file.read_bytes()
        place = chance.randrange(len(whole))
        file.write_bytes(
            whole[:place] + bytes([whole[place] ^ 1 << chance.randrange(8)]) + whole[place + 1 :]
        )
        with pytest.raises(CheckFailed, match=str(path)):
            checkpoint.verify(path)
        file.write_bytes(whole)
    checkpoint.verify(path)


def test_every_truncation_is_found(tmp_path: Path) -> None:
    path, chance = write(tmp_path, 1), random.Random(0)
    for _ in range(50):
        file = chance.choice(sorted(path.iterdir()))
        whole = file.read_bytes()
        file.write_bytes(whole[: chance.randrange(len(whole))])
        with pytest.raises(CheckFailed, match=str(path)):
            checkpoint.verify(path)
        file.write_bytes(whole)


def test_files_swapped_missing_or_added_are_found(tmp_path: Path) -> None:
    path, other = write(tmp_path, 1, 1.0), write(tmp_path, 2, 2.0)
    shutil.copy(path / "model.safetensors", tmp_path / "kept")
    shutil.copy(other / "model.safetensors", path / "model.safetensors")
    with pytest.raises(CheckFailed, match=r"model\.safetensors is damaged"):
        checkpoint.verify(path)
    shutil.copy(tmp_path / "kept", path / "model.safetensors")
    (path / "extra.txt").write_text("?")
    with pytest.raises(CheckFailed, match=r"extra\.txt does not belong"):
        checkpoint.verify(path)
    (path / "extra.txt").unlink()
    (path / "rng.safetensors").unlink()
    with pytest.raises(CheckFailed, match=r"rng\.safetensors is missing"):
        checkpoint.verify(path)
    with pytest.raises(CheckFailed, match=r"manifest\.json cannot be read"):
        checkpoint.verify(tmp_path / "step-000009")


def test_the_newest_good_one_is_taken_with_a_warning(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write(tmp_path, step)
    (tmp_path / "step-000003" / "model.safetensors").write_bytes(b"")
    shutil.rmtree(tmp_path / "step-000002")
    (tmp_path / "step-000002").mkdir()
    told: list[str] = []
    found = checkpoint.newest(tmp_path, told.append)
    assert found is not None and found.step == 1
    assert len(told) == 2 and "step-000003" in told[0] and "step-000002" in told[1]
    assert checkpoint.newest(tmp_path / "nowhere", told.append) is None


def test_leftovers_of_the_dead_are_removed(tmp_path: Path) -> None:
    inside = tmp_path / "checkpoints"
    write(inside, 1)
    left = [
        inside / ".tmp-2-99999999",
        inside / ".tmp-gone-step-000000-99999999",
        tmp_path / ".model.new-99999999",
    ]
    for folder in left:
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
    (tmp_path / ".summary.json-99999999").write_text("{")
    checkpoint.sweep(tmp_path)
    assert [p.name for p in inside.iterdir()] == ["step-000001"]
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoints"]


def test_a_failed_write_leaves_nothing_and_keeps_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 1)
    for name in ("save_file", "sync", "_write_manifest"):
        with monkeypatch.context() as patch:

            def fail(*_: object) -> None:
                raise OSError(28, "No space left on device")

            patch.setattr(checkpoint, name, fail)
            told = r"No space left on device; \d+ bytes needed, [\d,]+ bytes free"
            with pytest.raises(DiskError, match=told):
                write(tmp_path, 2)
        assert [p.name for p in tmp_path.iterdir()] == ["step-000001"]
        checkpoint.verify(tmp_path / "step-000001")


def test_only_the_kept_remain(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        write(tmp_path, step)
    checkpoint.prune(tmp_path, [2, 4])
    assert checkpoint.steps(tmp_path) == [2, 4]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_run_falls_back_and_ends_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest checkpoint is damaged: the run goes back one, does the steps again, and replaces it."""
    go(tmp_path / "whole", steps=15, save_every=5)
    go(tmp_path / "hurt", steps=10, save_every=5)
    (tmp_path / "hurt" / "summary.json").unlink()
    file = tmp_path / "hurt" / "checkpoints" / "step-000010" / "optim.safetensors"
    whole = bytearray(file.read_bytes())
    whole[-3] ^= 4
    file.write_bytes(bytes(whole))
    go(tmp_path / "hurt", resume=True, steps=15, save_every=5)
    said = capsys.readouterr().err
    assert "optim.safetensors is damaged" in said and "resumed step 5" in said
    metrics = (tmp_path / "hurt" / "metrics.jsonl").read_text()
    assert metrics == (tmp_path / "whole" / "metrics.jsonl").read_text()
    assert_same(tmp_path / "whole", tmp_path / "hurt")


def test_a_damaged_best_gives_way_to_the_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {"steps": 6, "evaluate_every": 2, "save_every": 3}
    task = Counting(figures=[3.0, 1.0, 2.0])
    assert go(tmp_path / "run", task, **options).chosen == 4
    (tmp_path / "run" / "summary.json").unlink()
    (tmp_path / "run" / "checkpoints" / "step-000004" / "model.safetensors").write_bytes(b"")
    summary = go(tmp_path / "run", resume=True, **options)
    assert summary.chosen == 6 and "Another checkpoint is used instead" in capsys.readouterr().err


def test_the_manifest_says_what_decides_the_bits(tmp_path: Path) -> None:
    go(tmp_path / "run", steps=2)
    found = json.loads((tmp_path / "run/checkpoints/step-000002/manifest.json").read_text())
    expected = {"config_hash", "data_hash", "tokenizer_hash", "threads", "world", "torch", "regard", "sha256"}
    assert set(found) == {"step", "files", *expected}
    assert found["torch"] == torch.__version__
