"""Run files: what they mean, what is refused and where it is said, and run folders that can be loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.dotted import PathError, change, parse_override, put
from regard.errors import CheckFailed, DataError, UsageError
from regard.launch import evaluate, prepare, train
from regard.model import Decoder, EncoderDecoder
from regard.run import RunError, read_run
from regard.spec import SpecError
from regard.strict_yaml import dump, parse

DIMS = {"width": 16, "heads": 2, "layers": 1, "length": 64}
TINY: dict[str, Any] = {
    "model": {"system": "vanilla", "dims": DIMS, "dropout": 0.0},
    "task": {"kind": "dates", "samples": 200, "tests": 20},
    "train": {"steps": 3, "size": 4},
}
YAML = """\
model:
  system: vanilla
  dims: {width: 16, heads: 2, layers: 1, length: 64}
task: {kind: dates}
train:
  steps: 3
  lr: 1e-3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(YAML)
    return path


def problems(source: Any, *overrides: str) -> dict[str, tuple[str, str]]:
    """path -> (message, place) of all that is wrong."""
    with pytest.raises(RunError) as caught:
        read_run(source, overrides)
    error = caught.value
    return {path: (text, place) for (path, text), place in zip(error.problems, error.places, strict=True)}


# --- overrides and paths ---


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("train.lr=3e-4", "train.lr", 3e-4),
        ("task.name=no", "task.name", "no"),
        ("model.change.a.b={kind: gated, hidden: 3}", "model.change.a.b", {"kind": "gated", "hidden": 3}),
        ("a=", "a", None),
        ("a='1'", "a", "1"),
        ("a=b=c", "a", "b=c"),
    ],
)
def test_overrides(text: str, path: str, value: Any) -> None:
    assert parse_override(text, 1) == (path, value)


@pytest.mark.parametrize(
    "text", ["train.lr", "=3", "a..b=1", ".a=1", "a=[1", "a=!!python/name:x y", "a=&x 1"]
)
def test_bad_overrides(text: str) -> None:
    with pytest.raises(PathError):
        parse_override(text, 1)


def test_put_makes_what_is_missing() -> None:
    data: dict[str, Any] = {"task": {"tokens": "bpe"}}
    put(data, ["task", "tokens", "vocab"], 5)
    put(data, ["train", "optimizer", "decay"], 0.1)
    assert data == {"task": {"tokens": {"kind": "bpe", "vocab": 5}}, "train": {"optimizer": {"decay": 0.1}}}


def tree() -> dict[str, Any]:
    ffn = {"kind": "dense", "hidden": 8, "activation": "relu"}
    block = {"kind": "serial", "sublayers": {"ffn": ffn}}
    return {
        "kind": "model",
        "a": {"kind": "s", "block": block},
        "b": {"kind": "s", "block": parse(dump(block)).data},
        "list": [{"kind": "x", "n": 1}, {"kind": "x", "n": 2}],
        "none": None,
    }


def test_change_replaces_with_a_kind_and_merges_without() -> None:
    data = tree()
    assert change(data, "a.block.sublayers.ffn", {"kind": "gated"}) == ["a.block.sublayers.ffn"]
    assert change(data, "b.block.sublayers.ffn", {"hidden": 3}) == ["b.block.sublayers.ffn"]
    assert data["a"]["block"]["sublayers"]["ffn"] == {"kind": "gated"}
    assert data["b"]["block"]["sublayers"]["ffn"] == {"kind": "dense", "hidden": 3, "activation": "relu"}


def test_star_stands_for_every_step_that_leads_on() -> None:
    data = tree()
    assert change(data, "*.block.sublayers.ffn.hidden", 5) == [
        "a.block.sublayers.ffn.hidden",
        "b.block.sublayers.ffn.hidden",
    ]
    assert change(data, "list.*.n", 7) == ["list.0.n", "list.1.n"]
    assert [row["n"] for row in data["list"]] == [7, 7]
    assert change(data, "a.dims.layers", 3) == ["a.dims.layers"] and data["a"]["dims"] == {"layers": 3}


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("a.blok.sublayers", "Did you mean 'block'"),
        ("a.block.sublayers.fnn.hidden", "Did you mean 'ffn'"),
        ("c.block", "the model has no 'c'"),
        ("none.kind", "nothing inside"),
        ("a.block.kind.x", "nothing inside"),
        ("list.2.n", "0 to 1"),
        ("list.x", "0 to 1"),
        ("*.blok.x", "no part has a place"),
    ],
)
def test_change_says_where_a_path_ends(path: str, says: str) -> None:
    with pytest.raises(PathError, match=says):
        change(tree(), path, 1)


# --- reading ---


def test_a_run_file_is_a_model_a_task_and_a_training(file: Path) -> None:
    run = read_run(file, ["train.lr=3e-4", "model.width=32", "model.dropout=0.25"])
    assert run.task is not None
    training = run.training.build()
    assert (training.steps, training.lr) == (3, 3e-4)
    model = regard.build(run.recipe({"vocab": 11}))
    assert isinstance(model, EncoderDecoder) and model.dims.width == 32 and model.head.weight.shape[0] == 11


def test_mapping_and_file_mean_the_same(file: Path) -> None:
    assert read_run(file).recipe({"vocab": 9}) == read_run(parse(YAML).data).recipe({"vocab": 9})


def test_the_resolved_form_reads_back_the_same(file: Path) -> None:
    run = read_run(file, ["model.change.*.block.sublayers.ffn={kind: gated, activation: silu}"])
    recipe = run.recipe({"vocab": 9})
    resolved = run.resolved(recipe)
    again = read_run(parse(dump(resolved)).data)
    assert again.resolved(again.recipe()) == resolved
    assert resolved["train"]["clip"] == 1.0 and resolved["train"]["optimizer"]["kind"] == "adamw"
    a, b = regard.build(recipe, 0), regard.build(again.recipe(), 0)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_change_reaches_the_part_and_leaves_the_others(file: Path) -> None:
    run = read_run(file, ["model.encoder.block.sublayers.ffn.hidden=48", "model.decoder.dims.layers=3"])
    model = regard.build(run.recipe({"vocab": 9}))
    assert isinstance(model, EncoderDecoder)
    hidden = {
        n: p.shape[0] for n, p in model.named_parameters() if "ffn" in n and p.ndim == 2 and p.shape[0] != 16
    }
    assert {n: h for n, h in hidden.items() if n.startswith("encoder")} and all(
        h == (48 if n.startswith("encoder") else 64) for n, h in hidden.items()
    )
    assert len({n.split(".")[2] for n in hidden if n.startswith("decoder")}) == 3


def test_nested_override_changes_the_default_part(file: Path) -> None:
    run = read_run(file, ["train.optimizer.decay=0.5", "train.schedule=cosine", "train.schedule.warmup=7"])
    training = run.training.build()
    assert training.optimizer.build().decay == 0.5 and training.schedule.build().warmup == 7


def test_every_problem_is_told_at_once_with_its_place(file: Path) -> None:
    file.write_text(
        YAML.replace("system: vanilla", "system: vanila").replace("lr: 1e-3", "lr: fast\n  stepz: 1")
    )
    found = problems(file, "task.kind=datez", "trian.lr=1", "train.clip=[1]")
    assert found["model.system"] == ("no system is called 'vanila'. Did you mean 'vanilla'?", "line 2")
    assert "a number" in found["train.lr"][0] and found["train.lr"][1] == "line 7"
    assert "Did you mean 'steps'" in found["train.stepz"][0] and found["train.stepz"][1] == "line 8"
    assert "Did you mean 'dates'" in found["task"][0] and found["task"][1] == "override 1"
    assert "Did you mean 'train'" in found["trian.lr"][0] and found["trian.lr"][1] == "override 2"
    assert found["train.clip"][1] == "override 3"


@pytest.mark.parametrize(
    ("override", "path", "says"),
    [
        ("model.wdth=3", "model.wdth", "Did you mean 'width'"),
        ("model.dims.wdth=3", "model.dims.wdth", "Did you mean 'width'"),
        ("model.size=huge", "model.size", "no size"),
        ("model.dropout=much", "model.dropout", "a number"),
        ("model.width=0", "model.dims", "from 1 to"),
        ("model.layers=1000000000", "model.dims.layers", "from 1 to 10,000"),
        ("model.vocab=1000000000000", "model.vocab", "from 1 to"),
        ("model.encoder.blok=1", "model.encoder.blok", "Did you mean 'block'"),
        ("model.encoder.blok.norm=rms", "model.change.encoder.blok.norm", "Did you mean 'block'"),
        (
            "model.encoder.block.sublayers.ffn.hiden=3",
            "model.encoder.block.sublayers.ffn.hiden",
            "Did you mean",
        ),
        (
            "model.encoder.block.sublayers.ffn=gatd",
            "model.encoder.block.sublayers.ffn",
            "Did you mean 'gated'",
        ),
        ("train.steps=0", "train", "at least 1"),
        ("train.steps=3.5", "train.steps", "a whole number"),
        ("train.precision=fp8", "train.precision", "fp32"),
        ("task.samples=yes", "task.samples", "a whole number"),
        ("task=[1]", "task", "must be a mapping"),
        ("model.system=", "model.system", "no system"),
        ("model={kind: decodr}", "model", "Did you mean 'decoder'"),
    ],
)
def test_what_is_wrong_is_said_in_its_place(file: Path, override: str, path: str, says: str) -> None:
    found = problems(file, override)
    hit = {p: v for p, v in found.items() if p.startswith(path)}
    assert hit and any(says in text for text, _ in hit.values()), found
    assert any(place == "override 1" for _, place in hit.values()), found


def test_numbers_that_do_not_go_together(file: Path) -> None:
    found = problems(file, "model.heads=3")
    assert "heads must divide" in found["model.dims"][0] and found["model.dims"][1] == "line 3"


HOSTILE = [
    "model: {system: !!python/object/apply:os.system ['touch CANARY']}",
    "model: {_target_: os.system, args: ['touch CANARY']}",
    "model: {class_path: subprocess.Popen, init_args: {args: 'touch CANARY'}}",
    "model: {system: os.system}",
    "model: {system: regard.systems.gpt}",
    "model: {kind: 'regard.model:Decoder'}",
    "model: {system: gpt, vocab: '${env:HOME}', dims: {width: 8}}",
    "model: {system: gpt, vocab: ${oc.env:HOME}, dims: {width: 8}}",
    "model: {system: gpt, dims: {width: 8, __class__: x}, vocab: 9}",
    "model: {system: gpt, vocab: 9, dims: {width: 8}, change: {__init__.__globals__: 1}}",
    "model: {system: gpt, vocab: 9, dims: {width: 8}, change: {'stack.make': os.system}}",
    "model: {system: gpt, vocab: 9, dims: {width: 100000000000}}",
    "model: {system: gpt, vocab: 9, dims: {width: 8, layers: 1000000000}}",
    "model: {system: gpt, vocab: 9, dims: {width: 1e9}}",
    "model: {system: gpt, vocab: -9, dims: {width: 8}}",
    "model: {system: gpt, vocab: 9, dims: {width: true}}",
    "model: {system: gpt, vocab: 9, dims: [8]}",
    "model: {system: gpt, voc\u0430b: 9, dims: {width: 8}}",
    "model: {system: \u0261pt, vocab: 9, dims: {width: 8}}",
    "model: &a {system: gpt}\ntask: *a",
    "a: &a [x,x,x]\nb: &b [*a,*a,*a]\nmodel: *b",
    "model: {system: gpt}\nmodel: {system: bert}",
    "model: {system: {system: gpt}}",
    "include: /etc/passwd",
    "model: !include /etc/passwd",
    "<<: {system: gpt}",
    "- model",
    "model",
    "42",
    "model: null",
    "model: []",
    "exec: touch CANARY",
    "[" * 20_000,
    "{" * 20_000,
    "model: {change: " * 100,
    "\ufeff\ufeffmodel: x",
    "model: {system: gpt, vocab: 9, dims: {width: 8}}\n---\nmodel: {system: gpt}",
    "model: {system: gpt, vocab: 9, dims: {width: .inf}}",
    "model: {system: gpt, vocab: 0x7fffffffffffffff, dims: {width: 8}}",
    "train: {steps: 99999999999999999999999999999999999999999}",
    "task: {kind: dates, __dict__: {}}\nmodel: {system: vanilla, dims: {width: 8}}",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_run_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError):
        read_run(path)
    assert not (tmp_path / "CANARY").exists()


def test_hostile_run_files_run_nothing(tmp_path: Path) -> None:
    """No exec, no process, no socket while a hostile file is read: an audit hook watches."""
    for number, text in enumerate(HOSTILE):
        (tmp_path / f"{number}.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "good.yaml").write_text(YAML)
    code = f"""
import sys, pathlib
import regard.tasks, regard.train, regard.systems, torch
from regard.run import read_run
from regard.errors import UsageError
def read(n):
    return read_run(pathlib.Path(sys.argv[1]) / f"{{n}}.yaml")
seen = []
read("good")
sys.addaudithook(lambda name, args: seen.append((name, str(args)[:80])) if name in
    ("exec", "subprocess.Popen", "os.system", "socket.connect", "os.exec", "os.posix_spawn") else None)
for n in range({len(HOSTILE)}):
    try:
        read(n)
        sys.exit(f"{{n}} was accepted")
    except UsageError:
        pass
ours = [s for s in seen if "<code object <module>" not in s[1]]  # importing a module is no attack
sys.exit(str(ours)[:500] if ours else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr


def test_needs_are_filled_in_and_must_agree(file: Path) -> None:
    run = read_run(file)
    assert regard.build(run.recipe({"vocab": 12})).head.weight.shape[0] == 12
    with pytest.raises(RunError, match="the task needs 12, but 13"):
        read_run(file, ["model.vocab=13"]).recipe({"vocab": 12})
    with pytest.raises(RunError, match="no option 'classes'"):
        run.recipe({"vocab": 12, "classes": 2})


def test_a_model_written_out_must_fit_its_task(file: Path) -> None:
    run = read_run(file)
    whole = {"model": run.resolved(run.recipe({"vocab": 12}))["model"], "task": "dates"}
    assert read_run(whole).recipe({"vocab": 12}) is not None
    with pytest.raises(RunError, match=r"model\.embed\.vocab +the task needs 13, but 12"):
        read_run(whole).recipe({"vocab": 13})


def test_a_model_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text("model: {system: gpt, vocab: 7, dims: {width: 8, heads: 2}}")
    assert isinstance(regard.build(read_run(path).recipe()), Decoder)
    path.write_text("model: {system: gpt, dims: {width: 8}}")
    assert "vocab" in next(iter(problems(path)))


def test_data_files_are_found_from_here_then_beside_the_run_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, beside = tmp_path / "here", tmp_path / "beside"
    for folder in (here, beside):
        folder.mkdir()
        (folder / "both.txt").write_text(f"text of {folder.name}\n" * 20)
    (beside / "only.txt").write_text("text\n")
    task = "task: {kind: language, text: [both.txt, only.txt, none.txt]}"
    (beside / "run.yaml").write_text("model: {system: gpt, dims: {width: 8, length: 8}}\n" + task)
    monkeypatch.chdir(here)
    run = read_run(beside / "run.yaml")
    assert run.task is not None
    assert run.task.options["text"] == [str(here / "both.txt"), str(beside / "only.txt"), "none.txt"]
    with pytest.raises(DataError, match=r"none\.txt"):
        prepare(run, None)


# --- run folders ---


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "tiny"
    train(TINY, out=out)
    return out


def test_the_folder_tells_everything(trained: Path) -> None:
    for name in ("config.yaml", "regard.json", "tokens", "metrics.jsonl", "log.txt", "checkpoints", "model"):
        assert (trained / name).exists(), name
    config = parse((trained / "config.yaml").read_text()).data
    assert config["train"]["steps"] == 3 and config["model"]["kind"] == "encoder_decoder"
    assert json.loads((trained / "regard.json").read_text())["torch"] == torch.__version__
    assert len((trained / "metrics.jsonl").read_text().splitlines()) >= 1


@pytest.mark.parametrize(
    "options", [{"precision": "fp32"}, {"precision": "bf16"}, {"compile": True}], ids=str
)
def test_a_run_is_loaded_for_quick_answers_as_the_docs_say(trained: Path, options: dict[str, Any]) -> None:
    inputs = ["3 March 2021", "12. Oktober 1998"]
    assert len(regard.load(trained, **options).predict(inputs)) == 2
    if options.get("precision") != "bf16":
        assert regard.load(trained, **options).predict(inputs) == regard.load(trained).predict(inputs)


def test_a_run_folder_loads_and_answers(trained: Path) -> None:
    loaded = regard.load(trained)
    inputs = ["3 March 2021", "", "12. Oktober 1998"]
    answers = loaded.predict(inputs)
    assert len(answers) == 3 and answers[1] == ""
    assert loaded.predict(inputs[0]) == answers[0]
    assert loaded.tokens is not None and loaded.tokens.decode(loaded.tokens.encode("3 mars")) == "3 mars"
    [one, two] = loaded.score(["3 March 2021"] * 2, ["2021-03-03", "2021-03-03"])
    assert one == pytest.approx(two) and one < 0


def test_sampling_is_seeded(trained: Path) -> None:
    loaded = regard.load(trained)
    draws = [loaded.predict(["3 March 2021"] * 4, temperature=2.0, length=9, seed=s) for s in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


def test_unknown_rules_are_refused(trained: Path) -> None:
    with pytest.raises(UsageError, match="temprature"):
        regard.load(trained).predict("x", temprature=1.0)


def test_a_saved_model_loads_without_its_task(trained: Path) -> None:
    loaded = regard.load(trained / "model")
    assert loaded.task is None and loaded.tokens is not None
    with pytest.raises(UsageError, match="without a task"):
        loaded.predict("x")


def test_long_inputs_are_refused_or_cut(trained: Path) -> None:
    loaded = regard.load(trained)
    with pytest.raises(DataError, match="input 2: 200 tokens"):
        loaded.predict(["1", "1" * 200])
    assert len(loaded.predict(["1", "1" * 200], truncate="left")) == 2 and loaded.cut == 1


@pytest.mark.parametrize("inside", ["", "checkpoints", "checkpoints/step-000003", "none"])
def test_a_wrong_folder_is_one_sentence(trained: Path, tmp_path: Path, inside: str) -> None:
    wrong = trained / inside if inside else tmp_path
    with pytest.raises(UsageError) as caught:
        regard.load(wrong)
    assert "\n" not in str(caught.value) and str(wrong) in str(caught.value)


def test_evaluate_keeps_its_figures(trained: Path) -> None:
    figures = evaluate(trained, "test", limit=5)
    assert 0 <= figures["exact"] <= 1
    assert json.loads((trained / "eval/test.json").read_text())["exact"] == figures["exact"]
    with pytest.raises(UsageError, match="only the task"):
        evaluate(trained, "test", overrides=["train.steps=3"])


def test_a_folder_is_not_mixed_up(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="already holds a run"):
        train(TINY, out=trained)
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds other files"):
        train(TINY, out=tmp_path)
    assert (tmp_path / "letter.txt").read_text() == "mine"


def test_a_run_that_was_refused_can_be_mended(tmp_path: Path) -> None:
    """Nothing that a refused start leaves behind stands in the way of the next, or gets into it."""
    for name in ("source", "target"):
        (tmp_path / name).write_text("a b c d e f g h i j k l m n o p q r s t u v\n" * 3)
    task: dict[str, Any] = {
        "kind": "translate",
        "source": f"{tmp_path}/source",
        "target": f"{tmp_path}/target",
    }
    task["tokens"] = {"kind": "words", "vocab": 10}
    run = {**TINY, "model": {**TINY["model"], "dims": {**DIMS, "length": 8}}, "task": task}
    with pytest.raises(DataError, match=r"dims\.length"):
        train(run, out=tmp_path / "run")
    more = [f"task.valid_{side}={tmp_path}/{side}" for side in ("source", "target")]
    train(run, ["model.length=32", "task.tokens.vocab=12", *more], out=tmp_path / "run")
    tokens = regard.load(tmp_path / "run").tokens
    assert tokens is not None and tokens.vocab == 12


def test_a_refused_resume_leaves_the_folder_as_it_was(trained: Path) -> None:
    before = (trained / "config.yaml").read_bytes()
    with pytest.raises(UsageError, match="width"):
        train(TINY, ["model.width=32"], out=trained, resume=True)
    assert (trained / "config.yaml").read_bytes() == before
    assert regard.load(trained).model.dims.width == 16


def test_damage_is_found_and_named(trained: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    weights = copy / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckFailed, match=r"model\.safetensors"):
        regard.load(copy)


# --- the package ---


def test_import_needs_the_core_only() -> None:
    """`import regard` waits for nothing heavy; using it never imports an extra."""
    code = """
import sys
for name in "matplotlib transformers sentencepiece tensorboard x_transformers ctranslate2 psutil".split():
    sys.modules[name] = None  # importing it would fail
import regard
assert "torch" not in sys.modules, "import regard must not wait for torch"
import regard.catalogue, regard.cost, regard.demo, regard.check, regard.launch
regard.catalogue.registered()
model = regard.build(regard.system("gpt", vocab=7, width=8, heads=2, layers=1, length=8))
import torch
model(torch.zeros(1, 3, dtype=torch.long))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_names_of_the_package() -> None:
    assert regard.systems() == regard.systems()
    assert {"vanilla", "gpt", "bert", "t5", "llama"} <= set(regard.systems())
    for name in regard.__all__:
        assert getattr(regard, name) is not None
    with pytest.raises(SpecError):
        regard.system("gpt", vocab=5, width=8, hedas=2)


def test_readme_example_runs(tmp_path: Path) -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    blocks = [block.split("```")[0] for block in readme.split("```python\n")[1:]]
    assert blocks, "the README has a Python example"
    for block in blocks:
        done = subprocess.run(
            [sys.executable, "-c", block], capture_output=True, text=True, timeout=100, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
