"""A model as a folder: config.json + model.safetensors (+ the tokenizer). Never pickle.

A folder is written beside its place and renamed into it: it is there and complete, or not there.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from regard.errors import CheckFailed, DiskError, UsageError
from regard.model import Model, build
from regard.spec import read, write


class Saved(Protocol):
    """Whatever can put itself beside the weights: a tokenizer."""

    def save(self, folder: Path) -> None:
        """Write files into the folder."""


def weights(model: Model) -> dict[str, Tensor]:
    """Every weight once, under its first name: a matrix that is shared is not written twice."""
    seen: dict[int, str] = {}
    found: dict[str, Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen[id(tensor)] = name
            found[name] = tensor.detach()
    return found


def put(model: Model, found: dict[str, Tensor], where: str = "the weights") -> None:
    """Give a model its weights; every name and shape must agree."""
    own = weights(model)
    problems = [f"{name} is missing" for name in own if name not in found]
    problems += [f"{name} is not a weight of this model" for name in found if name not in own]
    problems += [
        f"{name} is {tuple(found[name].shape)} where the model has {tuple(own[name].shape)}"
        for name in own
        if name in found and found[name].shape != own[name].shape
    ]
    if problems:
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        raise CheckFailed(f"{where} must fit the model, but {'; '.join(problems[:5])}{more}.")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(found[name])


def save(
    model: Model, folder: str | Path, tokens: Saved | None = None, extra: dict[str, Any] | None = None
) -> Path:
    """Write config.json, model.safetensors and the tokenizer as one transaction.

    A model that is already there is replaced; anything else that is there is never touched.
    """
    if model.recipe is None:
        raise UsageError("Only a model made by regard.build has a recipe that can be saved with it.")
    folder = Path(folder).absolute()
    if folder.exists() and not _may_be_replaced(folder):
        raise UsageError(
            f"A model needs a folder of its own, but {folder} holds something else; choose another name."
        )
    new, old = (
        folder.with_name(f".{folder.name}.new-{os.getpid()}"),
        folder.with_name(f".{folder.name}.old-{os.getpid()}"),
    )
    try:
        new.mkdir(parents=True)
        config = {"model": write(model.recipe, resolved=True), **(extra or {})}
        (new / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        tensors = {name: t.contiguous().cpu() for name, t in weights(model).items()}
        save_file(tensors, new / "model.safetensors", metadata={"format": "pt"})
        (new / "model.safetensors").chmod(0o644)
        if tokens is not None:
            tokens.save(new)
        for path in new.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        if folder.exists():
            folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise
    except (OSError, SafetensorError) as error:
        raise DiskError(f"The model could not be saved to {folder}: {error}") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    return folder


def _may_be_replaced(folder: Path) -> bool:
    """Empty, or a model with its tokenizer: files only, config.json and model.safetensors among them."""
    if not folder.is_dir():
        return False
    held = {path.name: path.is_file() for path in folder.iterdir()}
    return not held or (all(held.values()) and {"config.json", "model.safetensors"} <= held.keys())


def load_model(folder: str | Path) -> Model:
    """The model of a folder that `save` wrote, in eval mode; every weight must be there and fit."""
    folder = Path(folder)
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise UsageError(
                f"A model folder must hold config.json and model.safetensors, but {folder} has no {name}."
            )
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        model = build(read(Model, config["model"], "model"))
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise CheckFailed(
            f"{folder / 'config.json'} must be a config that regard wrote, but is not: {error}"
        ) from error
    try:
        found = load_file(folder / "model.safetensors")
    except (SafetensorError, OSError) as error:
        raise CheckFailed(
            f"{folder / 'model.safetensors'} is damaged or cut short ({error}); copy it again."
        ) from error
    put(model, found, str(folder / "model.safetensors"))
    return model.eval()


class _Save(ModuleType):
    """`regard.save(model, folder)` is `save` above, although `regard.save` is also the name of this file."""

    def __call__(
        self,
        model: Model,
        folder: str | Path,
        tokens: Saved | None = None,
        extra: dict[str, Any] | None = None,
    ) -> Path:
        return save(model, folder, tokens, extra)


sys.modules[__name__].__class__ = _Save
