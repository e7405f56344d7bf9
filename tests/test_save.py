"""A model as a folder: exact, strict, whole or not there, and every refusal one sentence."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from regard.errors import CheckFailed, DiskError, UsageError
from regard.laws import lively
from regard.laws.models import apart
from regard.laws.subjects import systems
from regard.model import Decoder, Model, build
from regard.save import load_model, put, save, weights
from regard.spec import SpecError

TIED = {"gpt": 1, "vanilla": 1, "t5": 1, "bert": 1, "llama": 0}


def gpt(**options: Any) -> Model:
    return lively(regard.system("gpt", vocab=13, width=16, heads=4, layers=2, length=24, **options))


def one_sentence(error: BaseException) -> bool:
    text = str(error)
    return "\n" not in text and text.endswith(".")


@pytest.mark.parametrize("name", sorted(TIED))
def test_tied_weights_are_stored_once_and_tied_again(name: str, tmp_path: Path) -> None:
    model = lively(systems()[name][""])
    save(model, tmp_path / "m")
    stored = load_file(tmp_path / "m" / "model.safetensors")
    assert stored.keys() == weights(model).keys()
    assert len(model.state_dict()) - len(stored) == TIED[name]
    again = load_model(tmp_path / "m")
    assert apart(model, again) == 0
    count = sum(t.numel() for t in stored.values())
    assert count == sum(p.numel() for p in again.parameters())
    if TIED[name]:
        assert again.head.weight is again.embed.weight  # type: ignore[comparison-overlap]


def test_the_config_is_resolved_and_holds_what_was_added(tmp_path: Path) -> None:
    save(gpt(), tmp_path / "m", extra={"task": {"kind": "language"}})
    config = json.loads((tmp_path / "m" / "config.json").read_text(encoding="utf-8"))
    assert config["task"] == {"kind": "language"}
    norm = config["model"]["stack"]["block"]["norm"]
    assert norm == {"kind": "layer", "eps": 1e-5, "bias": True}
    assert not load_model(tmp_path / "m").training


def test_a_tokenizer_is_saved_beside_the_weights(tmp_path: Path) -> None:
    class Letters:
        def save(self, folder: Path) -> None:
            (folder / "tokens.json").write_text("{}", encoding="utf-8")

    save(gpt(), tmp_path / "m", tokens=Letters())
    assert {p.name for p in (tmp_path / "m").iterdir()} == {"config.json", "model.safetensors", "tokens.json"}
    mode = stat.S_IMODE((tmp_path / "m" / "model.safetensors").stat().st_mode)
    assert mode & stat.S_IRGRP, "others of the group may read it"


@pytest.mark.parametrize("length", [0, 1, 7, 8, 100, 2000, -1])
def test_cut_short_is_said_in_one_sentence(length: int, tmp_path: Path) -> None:
    save(gpt(), tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:length])
    with pytest.raises(CheckFailed, match=r"model\.safetensors is damaged or cut short") as caught:
        load_model(tmp_path / "m")
    assert one_sentence(caught.value)


def test_a_file_of_something_else(tmp_path: Path) -> None:
    save(gpt(), tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").write_bytes(os.urandom(4096))
    with pytest.raises(CheckFailed, match="damaged"):
        load_model(tmp_path / "m")


def changed(folder: Path, change: Any) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.pop("embed.weight"), "embed.weight is missing"),
        (lambda t: t.update(extra=torch.zeros(1)), "extra is not a weight of this model"),
        (
            lambda t: t.update({"embed.weight": torch.zeros(12, 16)}),
            r"embed.weight is \(12, 16\) where the model has \(13, 16\)",
        ),
        (
            lambda t: t.update({"embed.weight": torch.zeros(16, 13)}),
            r"embed.weight is \(16, 13\) where the model has \(13, 16\)",
        ),
        (lambda t: t.clear(), r"is missing; .* \(and \d+ more\)"),
    ],
)
def test_weights_that_do_not_fit_are_named(change: Any, says: str, tmp_path: Path) -> None:
    save(gpt(), tmp_path / "m")
    changed(tmp_path / "m", change)
    with pytest.raises(CheckFailed, match=says) as caught:
        load_model(tmp_path / "m")
    assert one_sentence(caught.value) and str(tmp_path / "m" / "model.safetensors") in str(caught.value)


def test_a_refusal_changes_no_weight() -> None:
    model, other = gpt(), gpt(bias=False)
    before = {name: t.clone() for name, t in weights(model).items()}
    with pytest.raises(CheckFailed, match="the weights must fit the model"):
        put(model, weights(other))
    assert all(torch.equal(t, before[name]) for name, t in weights(model).items())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda f: None, "has no config.json"),
        (lambda f: f.mkdir(), "has no config.json"),
        (lambda f: f.write_text("x", encoding="utf-8"), "has no config.json"),
        (
            lambda f: (f.mkdir(), (f / "config.json").write_text("{}", encoding="utf-8")),
            "no model.safetensors",
        ),
    ],
)
def test_a_wrong_folder(make: Any, says: str, tmp_path: Path) -> None:
    make(tmp_path / "m")
    with pytest.raises(
        UsageError, match=r"A model folder must hold config\.json and model\.safetensors"
    ) as caught:
        load_model(tmp_path / "m")
    assert says in str(caught.value) and one_sentence(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "5", "{}", '{"model": ', b"\xff\xfe{}"])
def test_a_config_of_something_else(text: str | bytes, tmp_path: Path) -> None:
    save(gpt(), tmp_path / "m")
    (tmp_path / "m" / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CheckFailed, match=r"config\.json must be a config that regard wrote"):
        load_model(tmp_path / "m")


def test_a_config_that_was_edited_names_the_place(tmp_path: Path) -> None:
    save(gpt(), tmp_path / "m")
    file = tmp_path / "m" / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["model"]["stack"]["block"]["ordr"] = "pre"
    config["model"]["dims"]["heads"] = "4"
    file.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load_model(tmp_path / "m")
    assert [path for path, _ in caught.value.problems] == ["model.stack.block.ordr", "model.dims.heads"]


def test_only_what_was_built_can_be_saved(tmp_path: Path) -> None:
    recipe = systems()["gpt"][""]
    bare = recipe.build()
    assert isinstance(bare, Decoder)
    with pytest.raises(UsageError, match=r"Only a model made by regard\.build"):
        save(bare, tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_saving_again_replaces_the_model_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    save(gpt(), tmp_path / "m")
    other = gpt(bias=False)
    save(other, tmp_path / "m")
    assert apart(other, load_model(tmp_path / "m")) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    (tmp_path / "empty").mkdir()
    save(other, tmp_path / "empty")
    assert apart(other, load_model(tmp_path / "empty")) == 0


@pytest.mark.parametrize("what", ["notes", "run", "file"])
def test_what_is_no_model_is_never_overwritten(what: str, tmp_path: Path) -> None:
    """A folder of runs or notes, or a file, is somebody's work."""
    target = tmp_path / "mine"
    if what == "file":
        target.write_text("thesis", encoding="utf-8")
    elif what == "notes":
        target.mkdir()
        (target / "notes.txt").write_text("thesis", encoding="utf-8")
    else:
        save(gpt(), target)
        (target / "checkpoints").mkdir()
        (target / "checkpoints" / "thesis").write_text("thesis", encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=r"needs a folder of its own, but .* holds something else") as caught:
        save(gpt(), target)
    assert sorted(tmp_path.rglob("*")) == before and one_sentence(caught.value)


def test_a_tokenizer_that_fails_leaves_the_old_model(tmp_path: Path) -> None:
    class Full:
        def save(self, folder: Path) -> None:
            raise OSError(28, "No space left on device")

    model = gpt()
    save(model, tmp_path / "m")
    with pytest.raises(DiskError, match=r"could not be saved to .*No space left on device"):
        save(gpt(bias=False), tmp_path / "m", tokens=Full())
    assert apart(model, load_model(tmp_path / "m")) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_a_rename_that_fails_puts_the_old_model_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = gpt()
    save(model, tmp_path / "m")
    real = Path.rename

    def rename(self: Path, target: Any) -> Path:
        if ".new-" in self.name:
            raise OSError(30, "Read-only file system")
        return real(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", rename)
        with pytest.raises(DiskError, match="Read-only file system"):
            save(gpt(bias=False), tmp_path / "m")
    assert apart(model, load_model(tmp_path / "m")) == 0


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(DiskError, match="could not be saved"):
        save(gpt(), tmp_path / "file" / "m")


def test_folders_in_between_are_made_and_here_is_a_folder_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert save(gpt(), tmp_path / "a" / "b" / "m") == tmp_path / "a" / "b" / "m"
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    save(gpt(), ".")
    assert apart(gpt(), load_model(tmp_path / "here")) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_number_formats_keep_their_values(dtype: torch.dtype, tmp_path: Path) -> None:
    model = gpt().to(dtype)
    save(model, tmp_path / "m")
    assert load_file(tmp_path / "m" / "model.safetensors")["embed.weight"].dtype == dtype
    again = load_model(tmp_path / "m")
    for name, tensor in weights(model).items():
        assert torch.equal(weights(again)[name], tensor.float()), name


def test_nothing_is_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **more: object) -> None:
        raise AssertionError("pickle was used")

    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(torch, "save", refuse)
    save(gpt(), tmp_path / "m")
    load_model(tmp_path / "m")


def test_the_seed_of_the_weights_does_not_matter_to_what_is_loaded(tmp_path: Path) -> None:
    recipe = systems()["llama"][""]
    one, two = build(recipe, 1), build(recipe, 2)
    save(two, tmp_path / "m")
    assert apart(one, load_model(tmp_path / "m")) > 0 and apart(two, load_model(tmp_path / "m")) == 0


def test_a_model_is_loaded_without_the_compiler(tmp_path: Path) -> None:
    """Importing torch's compiler takes a second, which nobody waits for who only asks."""
    model = regard.build(regard.system("sparse_transformer", vocab=7, width=8, heads=2, layers=1, length=512))
    save(model, tmp_path / "model")
    code = "import sys, torch; from regard.save import load_model; model = load_model(sys.argv[1])"
    code += "; model(torch.ones(1, 512, dtype=torch.long)); assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "model")], check=True)
