"""Laws of any model."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

import regard.nn.attend
from regard.errors import CheckFailed
from regard.laws.asking import LENGTH, ask, gap, gradients, slopes_apart, source, tokens, weigh
from regard.model import Decoder, Encoder, EncoderDecoder, Model, build
from regard.nn.compress import Compress
from regard.nn.context import How, places
from regard.save import load_model, save
from regard.spec import Recipe, read, write

SMALL = 8  # tokens in a block: three blocks are enough to go wrong in


def gradients_arrive(model: Model) -> float:
    """Every parameter gets a gradient that is finite and not zero everywhere."""
    ids_BL = tokens(3)
    y = ask(model, ids_BL)
    loss = weigh(y, (ids_BL >= 0)[..., None] if y.ndim == 3 else None)
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    for (name, _), gradient in zip(model.named_parameters(), found, strict=True):
        if gradient is None or not bool(gradient.isfinite().all()) or not bool(gradient.any()):
            raise CheckFailed(f"Every parameter must get a finite gradient, but {name} does not.")
    return 0.0


def round_trip(recipe: Recipe[Model]) -> float:
    """read(write(r)) == r; and written out with all defaults it still builds the same weights."""
    if read(Model, write(recipe)) != recipe:
        raise CheckFailed(f"read(write(r)) must be r, but is not for {write(recipe)}.")
    resolved = write(recipe, resolved=True)
    if write(read(Model, resolved)) != resolved:
        raise CheckFailed(f"The resolved form must read back as itself, but does not: {resolved}.")
    return apart(build(recipe), build(read(Model, resolved)))


def saved_exactly(model: Model) -> float:
    """Written to a folder and loaded from it: the same weights, the same answers."""
    ids_BL = tokens(3)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        again = load_model(save(model, Path(folder) / "model"))
        return max(apart(model, again), gap(ask(model, ids_BL), ask(again, ids_BL)))


def born_from_seed(recipe: Recipe[Model]) -> float:
    """The same seed gives the same weights, another seed others, and no two layers are born alike."""
    one, same, other = build(recipe, 1), build(recipe, 1), build(recipe, 2)
    matrices = [(n, p) for n, p in one.named_parameters() if p.ndim > 1 and bool(p.any())]  # not at zero
    elsewhere = dict(other.named_parameters())
    for number, (name, p) in enumerate(matrices):
        if torch.equal(p, elsewhere[name]):
            raise CheckFailed(f"Another seed must give other weights, but {name} is the same.")
        for twin, q in matrices[:number]:
            if p.shape == q.shape and torch.equal(p, q):
                raise CheckFailed(f"Layers must be born different, but {twin} and {name} are the same.")
    return apart(one, same)


def apart(a: Model, b: Model) -> float:
    """The largest difference between two models' weights; infinite if they do not have the same names."""
    first, second = a.state_dict(), b.state_dict()
    if first.keys() != second.keys():
        return float("inf")
    return max(gap(first[name], second[name]) for name in first)


def ways_agree_in(model: Model) -> float:
    """fused == explicit == blockwise through a whole model, in its states and in all its gradients."""
    ids_BL, worst = tokens(3, pads="middle"), 0.0
    real_BL, answers = ids_BL >= 0, list[tuple[Tensor, list[Tensor]]]()
    hows: tuple[How, ...] = ("explicit", "fused", "blockwise")
    with patch.object(regard.nn.attend, "BLOCK", SMALL):
        for how in hows:
            x_BLD = _states(model, ids_BL, how)
            answers.append((x_BLD, gradients(model, weigh(x_BLD, real_BL[..., None]))))
    for x_BLD, found in answers[1:]:
        apart_by = slopes_apart(answers[0][1], found)
        worst = max(worst, gap(x_BLD, answers[0][0], real_BL), apart_by)
    return worst


def _states(model: Model, ids_BL: Tensor, how: How) -> Tensor:
    if isinstance(model, EncoderDecoder):
        memory = model.encode(source(ids_BL), how=how)
        # Blocks are for queries and keys of the same tokens, and a decoder also looks elsewhere.
        return model.states(ids_BL, places(ids_BL), memory, how="auto" if how == "blockwise" else how)
    assert isinstance(model, Decoder | Encoder)
    folded = any(isinstance(m, Compress) for m in model.modules())  # keys are not the queries' tokens
    return model.states(ids_BL, places(ids_BL), how="auto" if folded and how == "blockwise" else how)


def padding_is_blind(model: Model, pads: str = "left") -> float:
    """Alone or in a batch, with padding of any content and amount on any side: the same answers, gradients.

    One row of the batch is nothing but padding; it must harm nobody.
    """
    rows = [tokens(1, n, "plain", seed=n) for n in (9, 4, 1, 7)]
    sources = [tokens(1, n, "plain", seed=20 + n) for n in (3, 8, 5, 1)]
    ids_BL, source_BM = _spread(rows, 12, pads), _spread(sources, 10, pads)
    together = ask(model, ids_BL, source_BM)
    if not bool(together.isfinite().all()):
        raise CheckFailed("Padding must never make what is not a number, but it does.")
    worst, losses = 0.0, (torch.zeros(()), torch.zeros(()))
    for number, (row, read_from) in enumerate(zip(rows, sources, strict=True)):
        alone = ask(model, row, read_from)[0]
        mine = together[number] if together.ndim == 2 else together[number, ids_BL[number] >= 0]
        worst = max(worst, gap(mine, alone))
        losses = losses[0] + weigh(mine[None]), losses[1] + weigh(alone[None])
    return max(worst, slopes_apart(*(gradients(model, loss) for loss in losses)))


def _spread(rows: Sequence[Tensor], width: int, pads: str) -> Tensor:
    """The rows in a wider batch, and one more row that is nothing but padding."""
    random = torch.Generator().manual_seed(3)
    ids_BL = -torch.randint(1, 9, (len(rows) + 1, width), generator=random)
    for number, row in enumerate(rows):
        count = row.shape[1]
        middle = torch.randperm(width, generator=random)[:count].sort().values
        sides = {"left": torch.arange(width - count, width), "right": torch.arange(count)}
        ids_BL[number, sides.get(pads, middle)] = row[0]
    return ids_BL


def loss_falls(recipe: Recipe[Model]) -> float:
    """What fifteen steps on one batch leave of the loss, as a part of what it was."""
    model, ids_BL = build(recipe).train(), tokens(3, LENGTH, "right")
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=1e-2), list[float]()
    for _ in range(15):
        y = ask(model, ids_BL)
        target = torch.arange(3) if y.ndim == 2 else ids_BL.roll(-1, 1)
        kept = target >= 0
        loss = F.cross_entropy(y[kept], target[kept] % y.shape[-1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses[-1] / losses[0]
