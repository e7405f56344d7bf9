"""The command line: quick help, exit codes, one sentence for each error, as many lines out as in."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from regard.cli import app, explain
from regard.errors import CheckFailed, DataError, DiskError, TryAgain, UsageError
from regard.launch import train

READ = ["demo", "systems", "parts", "where", "cost", "doctor", "check"]
VERBS = [*READ, "train", "evaluate", "predict", "score", "prove"]
TINY: dict[str, Any] = {
    "model": {
        "system": "vanilla",
        "dims": {"width": 16, "heads": 2, "layers": 1, "length": 64},
        "dropout": 0.0,
    },
    "task": {"kind": "dates", "samples": 200, "tests": 20},
    "train": {"steps": 3, "size": 4},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "tiny"
    train(TINY, out=out)
    return out


def regard(*arguments: object, given: bytes | None = None) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, [str(a) for a in arguments], input=given)


def lines(result: Result) -> list[str]:
    assert result.exit_code == 0, result.stderr
    assert result.stdout.endswith("\n")
    return result.stdout[:-1].split("\n")


def sentence(result: Result, code: int) -> str:
    """What was said on stderr: no traceback, and the exit code that was promised."""
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr)
    assert "Traceback" not in result.stderr and result.stdout == ""
    return result.stderr.strip()


# --- help ---


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_names_every_option(verb: str) -> None:
    result = regard(*([verb] if verb else []), "--help")
    assert result.exit_code == 0 and "Usage:" in result.stdout
    if not verb:
        assert all(re.search(rf"^  {v} +\S", result.stdout, re.M) for v in VERBS)
        assert "74 the disk" in " ".join(result.stdout.split())


def test_help_answers_before_torch_is_imported() -> None:
    code = """
import sys
from typer.testing import CliRunner
from regard.cli import app
for verb in sys.argv[1:]:
    assert CliRunner().invoke(app, [verb, "--help"]).exit_code == 0, verb
assert CliRunner().invoke(app, ["--help"]).exit_code == 0
heavy = {"torch", "numpy", "tokenizers", "sacrebleu", "babel", "safetensors", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code, *VERBS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_python_m_regard() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "regard", "--version"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and re.fullmatch(r"regard \d+\.\d+\.\d+\n", done.stdout)


def test_a_misspelt_verb_is_told() -> None:
    result = regard("trian")
    assert result.exit_code == 2 and "train" in result.stderr


# --- exit codes ---


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CheckFailed("x"), 1),
        (UsageError("x"), 2),
        (DataError("x"), 65),
        (DiskError("x"), 74),
        (TryAgain("x"), 75),
        (OSError(28, "No space left on device", "/full"), 74),
        (MemoryError(), 2),
        (RuntimeError("the first process failed: UsageError: x"), 1),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried"), 2),
        (ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib"), 2),
        (ModuleNotFoundError("No module named 'regard.x'", name="regard.x"), 70),
        (ValueError("surprise"), 70),
        (KeyError("surprise"), 70),
    ],
)
def test_every_error_has_its_code(error: Exception, code: int) -> None:
    assert explain(error)[0] == code


def test_a_bug_shows_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.machine.doctor", lambda: 1 / 0)
    result = regard("doctor")
    assert result.exit_code == 70 and "Traceback" in result.stderr and "report" in result.stderr


def test_trace_on_demand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REGARD_TRACE", "1")
    result = regard("check", tmp_path / "none")
    assert result.exit_code == 2 and "Traceback" in result.stderr


# --- the catalogue, cost, doctor ---


def test_systems_and_parts() -> None:
    names = {row["name"] for row in json.loads(regard("systems", "--json").stdout)}
    assert {"vanilla", "gpt", "bert", "t5", "llama"} <= names
    rows = json.loads(regard("parts", "--json").stdout)
    assert {"position", "pattern", "mixer", "task", "tokens", "schedule", "optimizer"} <= {
        r["family"] for r in rows
    }
    rotary = next(r for r in rows if r["name"] == "rotary")
    assert rotary["file"] == "regard/nn/position/rotary.py" and "2104.09864" in rotary["arxiv"]
    assert [r["name"] for r in rows if r["family"] == "norm"] == [
        r["name"] for r in json.loads(regard("parts", "norm", "--json").stdout)
    ]
    assert "Did you mean" in sentence(regard("parts", "positon"), 2)


def test_the_matrix_of_parts() -> None:
    cells = json.loads(regard("parts", "--matrix", "--json").stdout)
    found = {(c["position"], c["name"]): c["works"] for c in cells}
    assert found["rotary", "window"] == found["alibi", "causal"] == "write"
    assert found["none", "full"] == found["learned", "window both"] == "read"
    assert found["t5_bias", "prefix"] == "write", "a prefix is read at once, then written after"
    assert found["rotary", "static"] == found["none", "int8"] == found["shaw", "sequential"] == "write"
    assert all(c["works"] in ("write", "read") or c["reason"] for c in cells)
    assert "rotary" in regard("parts", "--matrix").stdout


def test_every_part_says_what_it_is() -> None:
    for row in json.loads(regard("parts", "--json").stdout):
        assert row["summary"], row["name"]


def test_where() -> None:
    assert "regard/systems/vanilla.py" in regard("where", "vanilla").stdout
    assert "regard/nn/position/t5_bias.py" in regard("where", "T5-bias").stdout
    assert "regard/nn/position/rotary.py" in regard("where", "2104.09864").stdout
    assert "Did you mean 'rotary'" in sentence(regard("where", "rotery"), 2)


@pytest.mark.parametrize("page", ["systems", "parts"])
def test_generated_pages_are_up_to_date(page: str) -> None:
    path = Path(__file__).parent.parent / "docs" / f"{page}.md"
    assert path.read_text(encoding="utf-8") == regard(page, "--markdown").stdout, f"make docs writes {path}"


def test_cost_for_programs() -> None:
    found = json.loads(regard("cost", "gpt", "size=small", "--length", "8", "--json").stdout)
    assert found["parameters"] == 124_439_808
    assert found["cache_bytes"] == 2 * 8 * 12 * 64 * 12 * 2
    assert "Did you mean 'size'" in sentence(regard("cost", "gpt", "sise=small"), 2)
    assert "neither a run file nor a system" in sentence(regard("cost", "gtp"), 2)


def test_prove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "PROOFS.md"
    rows = json.loads(regard("prove", "future llama", "saved llama", "--out", page, "--json").stdout)
    assert {(row["law"], row["subject"]) for row in rows} == {("future", "llama"), ("saved", "llama")}
    assert all(row["ok"] and row["cases"] for row in rows) and "| llama |" in page.read_text()
    assert "no law" in sentence(regard("prove", "nonesuch"), 2)
    from regard.laws import Claim

    broken_claim = Claim("l", "s", 0.1, lambda: iter([("c", 0.5)]))
    monkeypatch.setattr(sys.modules["regard.laws.claims"], "claims", lambda: [broken_claim])
    broken = regard("prove")
    assert broken.exit_code == 1 and "1 of 1 claims do not hold: l, s (c)" in broken.stderr
    endless = Claim("l", "s", 0.1, lambda: iter([("c", float("inf"))]))
    monkeypatch.setattr(sys.modules["regard.laws.claims"], "claims", lambda: [endless])
    assert json.loads(regard("prove", "--json").stdout)[0]["difference"] is None, "JSON has no infinity"


def test_doctor() -> None:
    found = json.loads(regard("doctor", "--json").stdout)
    assert found["torch"].startswith("2.") and found["cores"] >= 1 and found["missing"] == []
    assert "torch" in regard("doctor").stdout


# --- train, evaluate, predict ---


def test_train_evaluate_predict(tmp_path: Path) -> None:
    file, out = tmp_path / "tiny.json", tmp_path / "out"
    file.write_text(json.dumps(TINY))
    assert regard("train", file, "train.steps=2", "--out", out).exit_code == 0
    assert "already holds a run" in sentence(regard("train", file, "--out", out), 2)
    assert regard("train", out, "--resume").exit_code == 0
    figures = json.loads(regard("evaluate", out, "--split", "valid", "--json").stdout)
    assert set(figures) >= {"split", "loss", "exact"} and figures["split"] == "valid"
    assert len(lines(regard("predict", out, "3 March 2021", "4 March 2021"))) == 2


def test_dry_run_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    result = regard("train", "tiny.json", "--dry-run")
    assert "parameters" in lines(result)[0]
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.json"]


def test_problems_of_a_file_are_told_together(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model: {system: gtp}\ntask: {kind: dates, sampels: 3}\ntrain:\n  stpes: 3\n")
    said = sentence(regard("train", file, "train.lr=quick"), 2)
    assert "4 problems" in said
    for piece in (
        "'gpt'",
        "'samples'",
        "'steps'",
        "a number",
        "(line 1)",
        "(line 2)",
        "(line 4)",
        "(override 1)",
    ):
        assert piece in said, piece


TORTURE = (
    b"\xef\xbb\xbf3 March 2021\r\n"  # a byte order mark and a Windows line end
    b"\n"
    b"   \n"
    b"one\xe2\x80\xa8line\xc2\x85only\x0b\x0c\x1c\n"  # characters that some readers take for line ends
    b"a lone \r return\n"
    b"\xf0\x9f\x98\x80 \xd7\x90\xd7\x91 e\xcc\x81\n"
    b"no line end"
)


def test_as_many_lines_out_as_in(run: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "in.txt", tmp_path / "out.txt"
    file.write_bytes(TORTURE)
    assert len(lines(regard("predict", run, "--file", file, "--length", 5))) == 7
    assert len(lines(regard("predict", run, "--length", 5, given=TORTURE))) == 7
    assert regard("predict", run, "--file", file, "--out", out, "--length", 5).exit_code == 0
    assert out.read_bytes().count(b"\n") == 7
    rows = [
        json.loads(line) for line in lines(regard("predict", run, "--file", file, "--json", "--length", 5))
    ]
    assert [row["input"] for row in rows][:3] == ["3 March 2021", "", "   "] and len(rows) == 7
    file.write_bytes(b"")
    assert regard("predict", run, "--file", file).stdout == ""


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"good\nbad \xff byte\n", ":2:5"),
        (b"good\nnul \x00\n", ":2:5"),
        (b"\xff\xfea\x00", ":1:1"),
        (b"ok\n" + b"1" * 300 + b"\n", ":2: 300 tokens"),
    ],
)
def test_bad_lines_are_named(run: Path, tmp_path: Path, raw: bytes, says: str) -> None:
    file = tmp_path / "in.txt"
    file.write_bytes(raw)
    out = tmp_path / "out.txt"
    assert says in sentence(regard("predict", run, "--file", file, "--out", out), 65)
    assert not out.exists()
    assert says in regard("predict", run, given=raw).stderr


def test_long_lines_are_cut_on_demand_and_counted(run: Path) -> None:
    result = regard("predict", run, "--truncate", "right", given=b"1\n" + b"2" * 300 + b"\n")
    assert len(lines(result)) == 2 and "1 inputs were too long" in result.stderr


def test_sampling_options(run: Path) -> None:
    def draw(seed: int) -> str:
        return regard(
            "predict", run, "x", "--sample", "--temperature", 3, "--seed", seed, "--length", 9
        ).stdout

    assert draw(1) == draw(1) != draw(2)
    assert "option of" in sentence(regard("predict", run, "x", "--beam", 2, "--top-k", 3), 2)
    assert "--json" in sentence(regard("predict", run, "x", "--beam", 2, "--nbest", 2), 2)
    assert "both" in sentence(regard("predict", run, "x", "--file", "y"), 2)


def test_score(run: Path, tmp_path: Path) -> None:
    asked, answered = tmp_path / "a", tmp_path / "b"
    asked.write_text("3 March 2021\n4 March 2021\n")
    answered.write_text("2021-03-03\n2021-03-04\n")
    assert all(float(line) < 0 for line in lines(regard("score", run, asked, answered)))
    answered.write_text("2021-03-03\n")
    said = sentence(regard("score", run, asked, answered), 65)
    assert "2 lines" in said and "1." in said


# --- wrong folders and damaged files ---


def test_wrong_folders(run: Path, tmp_path: Path) -> None:
    assert "no run" in sentence(regard("evaluate", tmp_path), 2)
    assert "neither a run" in sentence(regard("predict", tmp_path, "x"), 2)
    assert "is no folder" in sentence(regard("predict", tmp_path / "none", "x"), 2)
    assert "no config.yaml" in sentence(regard("train", tmp_path, "--resume"), 2).replace("without a", "no")
    assert "cannot be read" in sentence(regard("train", tmp_path / "none.yaml"), 2)
    assert "checkpoint inside a run" in sentence(
        regard("predict", next((run / "checkpoints").glob("step-*")), "x"), 2
    )


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    said = sentence(regard("train", tmp_path / "tiny.json", "--out", tmp_path / "file" / "run"), 74)
    assert str(tmp_path / "file") in said


def test_check_names_the_bad_file(run: Path, tmp_path: Path) -> None:
    import shutil

    assert len(lines(regard("check", run))) >= 4
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    step = sorted((copy / "checkpoints").glob("step-*"))[-1]
    for path in (step / "optim.safetensors", copy / "model" / "model.safetensors"):
        raw = bytearray(path.read_bytes())
        del raw[-50:]
        path.write_bytes(raw)
    said = sentence(regard("check", copy), 1)
    assert "optim.safetensors" in said and "model.safetensors" in said
    assert "optim.safetensors" in sentence(regard("check", step), 1)
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"good\n\xff\n")
    assert "bad.txt:2:1" in sentence(regard("check", bad), 1)
    bad.write_bytes(b"good\n\n")
    assert "2 lines, 1 of them empty" in lines(regard("check", bad))[0]


def test_a_closed_pipe_is_no_error(run: Path) -> None:
    code = f"{sys.executable} -m regard systems --markdown | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", code], capture_output=True, text=True, timeout=60, env={**os.environ}
    )
    assert done.returncode in (0, 141) and "Traceback" not in done.stderr and done.stdout == "# Systems\n"
