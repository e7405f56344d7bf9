"""Data without a valid split: part of the train split is held out, the same part every time."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.errors import DataError
from regard.spec import of
from regard.tasks.classify import Classify
from regard.tasks.task import hold_out
from regard.tasks.translate import Translate


@pytest.mark.parametrize("count", [2, 3, 19, 20, 21, 100, 5000, 50_000])
def test_every_sample_is_on_one_side_and_the_held_part_is_small(count: int) -> None:
    kept, held, note = hold_out(list(range(count)))
    assert sorted(kept + held) == list(range(count))
    assert kept == sorted(kept) and held == sorted(held)
    assert 1 <= len(held) <= max(1, min(1000, count // 2))
    assert (kept, held, note) == hold_out(list(range(count)))
    assert str(len(held)) in note


def test_one_sample_cannot_be_divided() -> None:
    with pytest.raises(DataError, match="only 1 samples"):
        hold_out([1])


def test_translate_holds_out_pairs_that_stay_together(tmp_path: Path) -> None:
    lines = [f"w{n} a" for n in range(40)]
    (tmp_path / "s").write_text("\n".join(lines) + "\n")
    (tmp_path / "t").write_text("\n".join(line.upper() for line in lines) + "\n")
    task = of(Translate, source=str(tmp_path / "s"), target=str(tmp_path / "t")).build()
    task.prepare()
    assert len(task.texts["train"]) == 38 and len(task.texts["valid"]) == 2
    assert all(b == a.upper() for pairs in task.texts.values() for a, b in pairs)
    assert not set(task.texts["train"]) & set(task.texts["valid"])
    assert any("held out" in note for note in task.notes)


def test_classify_holds_out_too(tmp_path: Path) -> None:
    rows = "\n".join(f"word{n}\t{n % 2}" for n in range(40))
    (tmp_path / "t.tsv").write_text(f"text\tlabel\n{rows}\n")
    task = of(Classify, train=str(tmp_path / "t.tsv")).build()
    task.prepare()
    assert [len(task.samples[split]) for split in ("train", "valid")] == [38, 2]
