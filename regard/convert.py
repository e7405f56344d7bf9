"""A trained model made into another one that answers almost alike and costs less.

group    heads share keys and values: GQA and MQA from a model with a set for each head
convert  the same for a folder: `regard convert RUN --groups 2 --out DIR`
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import UsageError
from regard.model import EncoderDecoder, Model, build
from regard.nn.mixer import Attention
from regard.save import load_model, put, save, weights
from regard.spec import Recipe, read, write

LEFT = ("checkpoints", "eval", "model", "config.yaml", ".lock")  # what a converted run does not take over


def group(model: Model, groups: int) -> Model:
    r"""The model with fewer sets of keys and values: each is the mean of those that it replaces.

        W_g^K = mean of W_h^K over the heads h of group g,   W^V alike

    Ainslie et al. 2023, section 2.1, https://arxiv.org/abs/2305.13245, who then train on for 5 % of the
    steps. As there, the encoder of an encoder-decoder stays as it is: it runs once, and keeps nothing. What a
    group has of its own besides (matrices that fold its keys) is averaged too.

    Options:
      groups: how many sets are left; must divide how many there are. 1: MQA
    """
    if model.recipe is None:
        raise UsageError("Only a model made by regard.build can be converted: it knows its recipe.")
    kept = ("encoder",) if isinstance(model, EncoderDecoder) else ()
    found, own = weights(model), list(model.named_modules())
    shared = [(path, m) for path, m in own if isinstance(m, Attention) and path.split(".")[0] not in kept]
    if not shared:
        raise UsageError("The model has no attention whose heads could share keys and values.")
    for path, old in shared:
        if groups < 1 or old.groups % groups:
            raise UsageError(
                f"groups must divide the {old.groups} sets of keys and values at {path}, but is {groups}."
            )
        found |= {f"{path}.{name}": t for name, t in _pooled(old, groups).items()}
    recipe = read(Model, write(model.recipe, resolved=True))
    parts = {k: v if k in kept else _regrouped(v, groups) for k, v in recipe.options.items()}
    first = next(model.parameters())
    new = build(Recipe(recipe.make, parts)).to(first.device, first.dtype)
    put(new, found, "the converted weights")
    return new.train(model.training)


def _regrouped(value: Any, groups: int) -> Any:
    """A recipe, or whatever holds some, with every attention in it changed."""
    if isinstance(value, Recipe):
        options = {k: _regrouped(v, groups) for k, v in value.options.items()}
        return Recipe(value.make, {**options, "groups": groups} if value.make is Attention else options)
    if isinstance(value, list | tuple):
        return type(value)(_regrouped(v, groups) for v in value)
    return {k: _regrouped(v, groups) for k, v in value.items()} if isinstance(value, dict) else value


def _pooled(old: Attention, groups: int) -> dict[str, Tensor]:
    """What changes in an attention, by its name there."""
    name, asks = ("kv", 0) if old.cross else ("qkv", old.heads * old.size)
    matrix, found = getattr(old, name), dict[str, Tensor]()
    for kind, t in matrix.named_parameters():
        answers = t.detach()[asks:].unflatten(0, (2, groups, -1, old.size)).mean(2).flatten(0, 2)
        found[f"{name}.{kind}"] = torch.cat([t.detach()[:asks], answers])
    if old.compress is not None:
        for kind, t in old.compress.named_parameters():
            if t.ndim == 3 and len(t) == old.groups:
                found[f"compress.{kind}"] = t.detach().unflatten(0, (groups, -1)).mean(1)
    return found


def convert(run: str | Path, groups: int, out: str | Path) -> Path:
    """A run folder or a model folder with its model grouped, in a new folder; checkpoints stay behind."""
    from regard.launch import write_config
    from regard.run import read_run

    run, out = Path(run), Path(out)
    if out.exists():
        raise UsageError(f"{out} is there already; choose another folder with --out.")
    if not (run / "config.yaml").is_file():
        _save(run, group(load_model(run), groups), out)
        return out
    if not (run / "model").is_dir():
        raise UsageError(f"{run} has no finished model yet; go on with: regard train {run} --resume")
    model = group(load_model(run / "model"), groups)
    assert model.recipe is not None
    shutil.copytree(run, out, ignore=lambda at, names: [n for n in names if Path(at) == run and n in LEFT])
    _save(run / "model", model, out / "model")
    write_config(read_run(run), model.recipe, out)
    return out


def _save(source: Path, model: Model, out: Path) -> None:
    """Beside the weights lies what lay beside the old ones: the tokenizer."""
    save(model, out)
    for path in source.iterdir():
        if not (out / path.name).exists():
            shutil.copy2(path, out)
