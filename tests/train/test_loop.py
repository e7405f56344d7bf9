"""The loop: that steps are what their formula says, that a resumed run is the same run, that it ends well."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import regard
import regard.train.session
import regard.train.settle
from regard.errors import DataError, UsageError
from regard.nn.position import T5Bias
from regard.save import load_model
from regard.train import NonFinite, checkpoint
from regard.train.precision import Precision, quicker
from tests.train.compare import assert_same, final, losses
from tests.train.toy import SAMPLES, Counting, go, recipe, training


def test_a_step_is_its_formula(tmp_path: Path) -> None:
    """Plain torch, written out, gives the same weights: mean over targets, clipped, AdamW, warm-up.

    Without biases: a key's has no gradient but rounding, which Adam would make large.
    """
    options: dict[str, Any] = {"steps": 4, "clip": 0.5, "schedule": {"kind": "linear", "warmup": 2}}
    plain = recipe(dropout=0.0, bias=False)
    go(tmp_path / "run", model=plain, **options)
    task, model = Counting(), regard.build(plain)
    decay = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-8)
    batches = task.batches("train")
    for step, factor in enumerate([0.5, 1.0, 0.5, 0.0]):
        batch = batches.at(step)
        loss = task.loss(model, batch)
        (loss.sum / loss.count).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        assert norm > 0.5
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * factor
        optimizer.step()
        optimizer.zero_grad()
    for name, weight in final(tmp_path / "run").items():
        torch.testing.assert_close(weight, model.state_dict()[name], rtol=1e-5, atol=1e-6)


def test_it_learns_and_leaves_a_model_that_loads(tmp_path: Path) -> None:
    summary = go(tmp_path / "run", steps=120, evaluate_every=40)
    assert summary.reason == "steps" and summary.step == 120
    assert losses(tmp_path / "run")[0] > 2.0 and summary.figures["loss"] < 1.3
    model = load_model(tmp_path / "run" / "model")
    assert Counting().evaluate(model, "valid")["loss"] == pytest.approx(summary.figures["loss"], rel=1e-6)
    assert (tmp_path / "run" / "model" / "tokens.txt").read_text() == "numbers"


def test_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    """Stopped in the middle of an epoch and of a window of metrics, between evaluations; dropout, EMA."""
    options: dict[str, Any] = {"evaluate_every": 6, "ema": 0.9, "save_every": 5, "log_every": 4}
    options |= {"schedule": "cosine", "nonfinite": "skip"}
    go(tmp_path / "whole", steps=21, **options)

    class Dies(Exception):
        pass

    class Mortal(Counting):
        def loss(self, model: Any, batch: Any) -> Any:
            if self.calls == 13:
                raise Dies
            return super().loss(model, batch)

    with pytest.raises(Dies):
        go(tmp_path / "parts", Mortal(), steps=21, **options)
    assert checkpoint.steps(tmp_path / "parts" / "checkpoints")[-1] == 12  # a new best was saved there
    go(tmp_path / "parts", resume=True, steps=21, **options)
    assert_same(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("kind", ["adafactor", "muon"])
def test_resumed_equals_uninterrupted_for_every_optimizer(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"optimizer": kind, "save_every": 3}
    go(tmp_path / "whole", steps=6, **options)
    go(tmp_path / "parts", steps=3, **options)
    (tmp_path / "parts" / "summary.json").unlink()
    go(tmp_path / "parts", resume=True, steps=6, **options)
    one, other = (
        load_file(tmp_path / n / "checkpoints/step-000006/optim.safetensors") for n in ("whole", "parts")
    )
    assert all(torch.equal(one[name], other[name]) for name in one) and one.keys() == other.keys()
    for name, weight in final(tmp_path / "whole").items():
        assert torch.equal(weight, final(tmp_path / "parts")[name])


def test_accumulation_changes_nothing_but_rounding(tmp_path: Path) -> None:
    for parts in (1, 4):
        go(
            tmp_path / str(parts),
            model=recipe(dropout=0.0, bias=False),
            steps=12,
            accumulate=parts,
            log_every=1,
        )
    one, four = losses(tmp_path / "1"), losses(tmp_path / "4")
    assert len(one) == 12 and one == pytest.approx(four, abs=1e-5)
    assert max(one) - min(one) > 0.1  # not a constant
    for name, weight in final(tmp_path / "1").items():
        torch.testing.assert_close(weight, final(tmp_path / "4")[name], rtol=0, atol=2e-4)


def test_parts_of_a_batch_cover_it_once_even_if_some_are_empty(tmp_path: Path) -> None:
    """Five batches an epoch, the last with 5 samples of 37: with 8 parts three of them are empty."""
    task = Counting()
    go(tmp_path / "run", task, steps=5, accumulate=8)
    assert sorted(n for ids in task.seen for n in ids) == list(range(SAMPLES))
    assert [] not in task.seen


def test_recomputed_is_the_same(tmp_path: Path) -> None:
    """Dropout included: the second pass must draw what the first drew."""
    for on in (False, True):
        go(tmp_path / str(on), steps=4, log_every=1, recompute=on)
    assert losses(tmp_path / "False") == pytest.approx(losses(tmp_path / "True"), rel=1e-6)


@pytest.mark.prove
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when its compiler is imported
def test_compiled_is_the_same(tmp_path: Path) -> None:
    for on in (False, True):
        options = {"compile": on, "log_every": 1, "steps": 6, "evaluate_every": 3}
        go(tmp_path / str(on), model=recipe(dropout=0.0), **options)
    assert losses(tmp_path / "False") == pytest.approx(losses(tmp_path / "True"), rel=1e-4)


def test_recompute_keeps_what_layers_share(tmp_path: Path) -> None:
    """T5's bias is made by the first layer for all: computed again in the backward pass, it must fit."""
    model = regard.system("gpt", vocab=11, width=16, heads=2, layers=3, length=12, position=regard.of(T5Bias))
    for on in (False, True):
        go(tmp_path / str(on), model=model, steps=4, recompute=on, log_every=1)
    assert losses(tmp_path / "False") == pytest.approx(losses(tmp_path / "True"), rel=1e-6)
    for name, weight in final(tmp_path / "False").items():
        torch.testing.assert_close(weight, final(tmp_path / "True")[name], rtol=1e-5, atol=1e-6)


def test_bf16_is_near_fp32_and_keeps_weights_in_fp32(tmp_path: Path) -> None:
    for precision in ("fp32", "bf16"):
        go(tmp_path / precision, steps=20, precision=precision, log_every=1)
    one, other = losses(tmp_path / "fp32"), losses(tmp_path / "bf16")
    assert one != other and one == pytest.approx(other, rel=0.05)
    assert {w.dtype for w in final(tmp_path / "bf16").values()} == {torch.float32}


@pytest.mark.parametrize("faster", ["fp32", "bf16"])
def test_auto_takes_the_quicker_format_and_keeps_it(
    faster: Precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits as when it had been asked for; resumed on a machine that finds otherwise, too."""
    slower: Precision = "bf16" if faster == "fp32" else "fp32"

    def says(best: Precision) -> None:
        def found(step: Callable[[Precision], None]) -> dict[Precision, float]:
            step("fp32")
            step("bf16")  # neither leaves a trace
            return {each: 1.0 if each == best else 2.0 for each in (faster, slower)}

        monkeypatch.setattr(regard.train.settle, "quicker", found)

    says(faster)
    go(tmp_path / "asked", steps=6, precision=faster)
    go(tmp_path / "auto", steps=3, precision="auto")
    says(slower)
    go(tmp_path / "auto", steps=6, precision="auto", resume=True)
    wanted, found = final(tmp_path / "asked"), final(tmp_path / "auto")
    assert all(torch.equal(weight, found[name]) for name, weight in wanted.items())
    told = [json.loads(line) for line in (tmp_path / "auto" / "events.jsonl").read_text().splitlines()]
    assert [event["chosen"] for event in told if event["event"] == "precision"] == [faster]


@pytest.mark.parametrize("gain", [0.9, 2.0])
def test_auto_compiles_where_it_pays_and_keeps_to_it(
    gain: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock and the compiler are stand-ins: what is measured decides, once, also for a resumed run."""
    made: list[int] = []
    settle = regard.train.settle
    monkeypatch.setattr(settle, "PAYS", 0.0)
    monkeypatch.setattr(settle, "compile_model", lambda model: made.append(1))
    monkeypatch.setattr(settle, "uncompile_model", lambda model: made.append(-1))
    monkeypatch.setattr(settle, "_shapes", lambda batch: {})
    monkeypatch.setattr(settle, "_seconds", lambda step, precision: 1.0 / gain if sum(made) else 1.0)
    go(tmp_path, steps=3, compile="auto")
    assert sum(made) == (gain > 1)
    go(tmp_path, steps=6, compile="auto", resume=True)
    assert made == ([1, 1] if gain > 1 else [1, -1])
    told = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["chosen"] for event in told if event["event"] == "compile"] == [gain > 1]


def test_auto_says_why_it_does_not_compile(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    go(tmp_path / "a", steps=2, compile="auto")
    go(tmp_path / "b", steps=2, compile="auto", recompute=True)
    said = capfd.readouterr()
    assert "not compiled: " in said.out + said.err
    assert "activations are computed again" in said.out + said.err


def test_both_formats_take_turns_and_the_best_counts() -> None:
    asked: list[Precision] = []
    found = quicker(asked.append, rounds=2)
    assert asked == ["fp32", "bf16"] * 3 and set(found) == {"fp32", "bf16"}


def test_a_format_that_is_far_slower_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that steps move: 2 s in fp32, 9 s in bf16."""
    asked: list[Precision] = []
    times: dict[Precision, float] = {"fp32": 2.0, "bf16": 9.0}
    monkeypatch.setattr("time.perf_counter", lambda: sum(times[each] for each in asked))
    assert quicker(asked.append, rounds=2) == times
    assert asked == ["fp32", "bf16", "fp32", "fp32"]


def test_not_finite_stops_before_the_weights(tmp_path: Path) -> None:
    with pytest.raises(NonFinite, match="step 6 is not finite") as raised:
        go(tmp_path / "run", Counting(poison=lambda call: call == 6), steps=20, save_every=5)
    told = json.loads((tmp_path / "run" / "nonfinite-step-000006.json").read_text())
    assert told["samples"] == [int(n) for n in Counting().batches("train").at(5).ids]
    assert str(tmp_path / "run" / "nonfinite-step-000006.json") in str(raised.value)
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [5]
    go(tmp_path / "run", resume=True, steps=20, save_every=5)
    go(tmp_path / "clean", steps=20, save_every=5)
    assert_same(tmp_path / "run", tmp_path / "clean")


def test_not_finite_can_be_skipped(tmp_path: Path) -> None:
    go(
        tmp_path / "run",
        Counting(poison=lambda call: call in (3, 4)),
        steps=6,
        nonfinite="skip",
        save_every=1,
        keep=6,
    )
    before, after = (load_file(tmp_path / f"run/checkpoints/step-{n:06d}/model.safetensors") for n in (2, 4))
    assert all(torch.equal(before[name], after[name]) for name in before)
    moments = [load_file(tmp_path / f"run/checkpoints/step-{n:06d}/optim.safetensors") for n in (2, 4)]
    assert all(torch.equal(moments[0][name], moments[1][name]) for name in moments[0])
    assert all(w.isfinite().all() for w in final(tmp_path / "run").values())
    skipped = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in skipped if line.get("skipped")] == [3, 4]


def test_skipping_everything_stops_in_the_end(tmp_path: Path) -> None:
    with pytest.raises(NonFinite, match="step 10 is not finite"):
        go(tmp_path / "run", Counting(poison=lambda call: True), steps=50, nonfinite="skip")


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    with pytest.raises(NonFinite):
        go(tmp_path / "run", steps=9, lr=1e38, clip=None, save_every=1)
    for path in (tmp_path / "run" / "checkpoints").rglob("*.safetensors"):
        assert all(t.isfinite().all() for t in load_file(path).values() if t.is_floating_point())


def test_best_by_metric_and_patience(tmp_path: Path) -> None:
    task = Counting(figures=[3.0, 2.0, 2.5, 2.1, 1.0])
    summary = go(tmp_path / "run", task, steps=100, evaluate_every=2, save_every=100, patience=2)
    assert (summary.reason, summary.step, summary.chosen, summary.figures) == (
        "patience",
        8,
        4,
        {"loss": 2.0},
    )
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [4, 8]
    best = load_file(tmp_path / "run" / "checkpoints" / "step-000004" / "model.safetensors")
    assert all(torch.equal(best[name], weight) for name, weight in final(tmp_path / "run").items())


def test_of_equal_metrics_the_smaller_loss_is_better(tmp_path: Path) -> None:
    class Exact(Counting):
        metric, better = "exact", "max"

        def evaluate(self, model: Any, split: str, limit: int | None = None) -> dict[str, Any]:
            return {"loss": [3.0, 2.0, 2.5][len(self.seen) // 2 - 1], "exact": 0.0}

    assert go(tmp_path / "run", Exact(), steps=6, evaluate_every=2).chosen == 4


def test_larger_can_be_better(tmp_path: Path) -> None:
    task = Counting(figures=[1.0, 3.0, 2.0])
    task.better = "max"
    assert go(tmp_path / "run", task, steps=6, evaluate_every=2).chosen == 4


def test_averaged_model_is_the_mean_of_the_last_checkpoints(tmp_path: Path) -> None:
    summary = go(tmp_path / "run", steps=22, save_every=5, average=3, evaluate_every=4)
    where = tmp_path / "run" / "checkpoints"
    kept = [load_file(where / f"step-{n:06d}" / "model.safetensors") for n in (15, 20, 22)]
    for name, weight in final(tmp_path / "run").items():
        torch.testing.assert_close(weight, sum(k[name].double() for k in kept).div(3).float(), rtol=0, atol=0)
    model = load_model(tmp_path / "run" / "model")
    assert summary.figures["loss"] == pytest.approx(Counting().evaluate(model, "valid")["loss"], rel=1e-6)


def test_ema_is_its_formula_and_is_what_is_saved(tmp_path: Path) -> None:
    go(tmp_path / "run", steps=5, save_every=1, keep=5, ema=0.5)
    where = tmp_path / "run" / "checkpoints"
    average = {k: v.double() for k, v in regard.build(recipe()).state_dict().items()}
    for step in range(1, 6):
        decay = min(0.5, (1 + step) / (10 + step))
        for name, weight in load_file(where / f"step-{step:06d}" / "model.safetensors").items():
            average[name] = decay * average[name] + (1 - decay) * weight
    for name, weight in final(tmp_path / "run").items():
        torch.testing.assert_close(weight.double(), average[name], rtol=1e-5, atol=1e-6)


def test_minutes_end_the_run_cleanly_and_resuming_it_does_nothing(tmp_path: Path) -> None:
    options: dict[str, Any] = {"steps": 10_000, "minutes": 0.005}
    summary = go(tmp_path / "run", Counting(slow=0.01), **options)
    assert summary.reason == "minutes" and 1 < summary.step < 10_000
    assert checkpoint.steps(tmp_path / "run" / "checkpoints")[-1] == summary.step
    task = Counting()
    assert go(tmp_path / "run", task, resume=True, **options) == summary and task.calls == 0


def test_a_rate_that_falls_has_fallen_when_the_minutes_are_over(tmp_path: Path) -> None:
    options: dict[str, Any] = {"steps": 10_000, "minutes": 0.02, "log_every": 1, "lr": 1e-3}
    go(tmp_path / "run", Counting(slow=0.01), schedule={"kind": "linear"}, **options)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rates = [rate for line in lines if (rate := json.loads(line).get("lr")) is not None]
    assert rates[0] > 0.5e-3 and rates[-1] < 0.2e-3


def test_how_many_steps_are_planned() -> None:
    timed, whole = training(steps=100, minutes=2), training(steps=100)
    assert timed.planned(0, 0.0) == timed.planned(30, 10.0) == whole.planned(5, 1e6) == 100
    assert timed.planned(10, 60.0) == 20 and timed.planned(10, 121.0) == 10


def test_a_finished_run_resumed_is_left_alone(tmp_path: Path) -> None:
    summary = go(tmp_path / "run", steps=7)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run" / "model").iterdir()}
    task = Counting()
    assert go(tmp_path / "run", task, resume=True, steps=7) == summary
    assert task.calls == 0 and before == {p: p.stat().st_mtime_ns for p in before}


def test_a_run_is_not_overwritten_by_accident(tmp_path: Path) -> None:
    go(tmp_path / "run", steps=3)
    with pytest.raises(UsageError, match="already holds a run: go on with --resume"):
        go(tmp_path / "run", steps=3)


def test_resuming_an_empty_folder_starts(tmp_path: Path) -> None:
    assert go(tmp_path / "run", resume=True, steps=2).step == 2


def test_changed_data_tokens_and_model_are_refused(tmp_path: Path) -> None:
    go(tmp_path / "run", steps=3)
    task = Counting(data=1)
    with pytest.raises(UsageError, match=r"its data was different: .* --allow-changed data"):
        go(tmp_path / "run", task, resume=True, steps=6)
    assert task.calls == 0
    with pytest.raises(UsageError, match="its tokens were different"):
        go(tmp_path / "run", Counting(tokens="words"), resume=True, steps=6)
    with pytest.raises(UsageError, match=r"model\.dims\.heads was 2 and is 4"):
        go(tmp_path / "run", model=recipe(heads=4), resume=True, steps=6)
    with pytest.raises(UsageError, match=r"is .* in the checkpoint and .* in the model"):
        go(tmp_path / "run", model=recipe(width=8), resume=True, allow_changed=["model"], steps=6)
    assert go(tmp_path / "run", task, resume=True, allow_changed=["data"], steps=6).step == 6


def test_changed_config_and_threads_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    go(tmp_path / "run", steps=3, config={"model": {"a": 1}, "train": {"lr": 0.1, "steps": 3}})
    changed = {"model": {"a": 1}, "train": {"lr": 0.2, "steps": 4}}
    go(tmp_path / "run", resume=True, steps=4, threads=2, config=changed)
    said = capsys.readouterr().err
    assert "threads was 1 and is 2: the result will be not bit-identical" in said
    assert "train.lr was 0.1 and is 0.2; train.steps was 3 and is 4" in said


def test_metrics_of_undone_steps_are_forgotten(tmp_path: Path) -> None:
    go(tmp_path / "run", steps=6, save_every=3, log_every=1)
    path = tmp_path / "run" / "metrics.jsonl"
    whole = path.read_text()
    with path.open("a") as file:
        file.write('{"step": 7, "loss": 1.0}\n{"step": 8, "lo')
    (tmp_path / "run" / "summary.json").unlink()
    go(tmp_path / "run", resume=True, steps=6, save_every=3, log_every=1)
    assert path.read_text() == whole


def test_a_broken_sample_is_named(tmp_path: Path) -> None:
    class Broken(Counting):
        def rows(self, split: str, numbers: Any) -> list[list[int]]:
            if split == "train" and 5 in list(numbers):
                raise ValueError("no such sample")
            return super().rows(split, numbers)

    with pytest.raises(DataError, match=r"samples .*5.* could not be made into a batch: no such sample"):
        go(tmp_path / "run", Broken(), steps=20)


def test_options_that_cannot_be_meant_are_refused() -> None:
    for options, said in [
        ({"keep": 1}, "train.keep must be at least 2, but 1"),
        ({"steps": 0}, "train.steps must be at least 1"),
        ({"ema": 1.5}, "train.ema must lie between 0 and 1"),
        ({"tokens": 5, "size": 5}, "cannot both be given"),
        ({"patience": 3}, "train.evaluate_every must be given"),
        ({"compile": True, "recompute": True}, "cannot both be true"),
        ({"lr": 0.0}, "train.lr must be more than 0"),
        ({"stepz": 3}, "Did you mean 'steps'"),
        ({"optimizer": "adamq"}, "Did you mean 'adamw'"),
    ]:
        with pytest.raises(UsageError, match=said):
            training(**options)


def test_tensorboard_files_are_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    go(tmp_path / "run", steps=3, tensorboard=True)
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))


def test_threads_are_given_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    go(tmp_path / "run", steps=1, threads=2)
    assert torch.get_num_threads() == before
    assert json.loads((tmp_path / "run/checkpoints/step-000001/manifest.json").read_text())["threads"] == 2
    assert math.isfinite(losses(tmp_path / "run")[0])
