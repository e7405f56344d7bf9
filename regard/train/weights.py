"""The numbers of a run by name: taken out for a checkpoint, put back, averaged; whole, however split."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer as TorchOptimizer

from regard.errors import UsageError
from regard.model import Model
from regard.save import weights
from regard.train.checkpoint import Tensors
from regard.train.parallel import like, whole


def take(tensors: Tensors, keep: bool) -> Tensors:
    """Full copies on the host; every process must call this, only those that `keep` get them."""
    taken: Tensors = {}
    for name, tensor in tensors.items():
        full = whole(tensor.detach())
        if keep:
            taken[name] = full.cpu()
    return taken


@torch.no_grad()
def put(tensors: Tensors, values: Tensors) -> None:
    """Copy full tensors into those of the same names; every name must be there, with its shape."""
    problems = differences(tensors, values)
    if problems:
        raise UsageError("the checkpoint must fit the model, but " + "; ".join(problems[:5]) + ".")
    for name, tensor in tensors.items():
        tensor.copy_(like(values[name], tensor))


def differences(tensors: Tensors, values: Tensors) -> list[str]:
    """Where two sets of named tensors differ in names or shapes, in words."""
    found = [f"{name} is only in the model" for name in tensors if name not in values]
    found += [f"{name} is only in the checkpoint" for name in values if name not in tensors]
    for name in tensors.keys() & values.keys():
        ours, theirs = tuple(tensors[name].shape), tuple(values[name].shape)
        if ours != theirs:
            found.append(f"{name} is {theirs} in the checkpoint and {ours} in the model")
    return found


def optimizer_state(optimizers: Iterable[TorchOptimizer], model: nn.Module) -> Tensors:
    """What the optimizers remember, as `<parameter>/<what>`: blocks.0.weight/exp_avg."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {
        f"{names[id(parameter)]}/{key}": value
        for optimizer in optimizers
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    }


def put_optimizer_state(optimizers: Iterable[TorchOptimizer], model: nn.Module, values: Tensors) -> None:
    """Give the optimizers their memory back."""
    owners = {id(p): (o, g) for o in optimizers for g in o.param_groups for p in g["params"]}
    parameters = dict(model.named_parameters())
    for path, value in values.items():
        name, key = path.rsplit("/", 1)
        if name not in parameters:
            raise UsageError(f"the checkpoint's optimizer remembers {name}, which the model does not have.")
        parameter = parameters[name]
        optimizer, group = owners[id(parameter)]
        if value.ndim or group.get("fused"):  # counts of steps stay on the host, but for the fused kernel
            value = value.to(parameter.device)
        optimizer.state[parameter][key] = like(value, parameter)


class Ema:
    """A running average of the weights.

        a_t = d_t a_{t-1} + (1 - d_t) w_t,   d_t = min(decay, (1 + t) / (10 + t))

    The smaller decay at the start lets it forget the random first weights (Polyak and Juditsky 1992 for the
    idea of averaging).
    """

    def __init__(self, model: Model, decay: float) -> None:
        self.decay = decay
        self.weights = {name: w.clone() for name, w in weights(model).items()}
        pairs = [(self.weights[name], w) for name, w in weights(model).items() if w.is_floating_point()]
        self._averages, self._weights = [a for a, _ in pairs], [w for _, w in pairs]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the weights of this step."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._averages, self._weights, 1.0 - decay)


def mean(sets: Iterable[Tensors]) -> Tensors:
    """The mean of several sets of weights, each name by itself; whole numbers are taken from the last.

    Summed in double precision, one set after the other, so that only two are in memory at once.
    """
    total: Tensors = {}
    last: Tensors = {}
    count = 0
    for last in sets:
        count += 1
        total = {n: t.double() + total.get(n, 0.0) for n, t in last.items() if t.is_floating_point()}
    return {n: (total[n] / count).to(t.dtype) if n in total else t for n, t in last.items()}


def finite(tensors: Iterable[Tensor]) -> bool:
    """Are all numbers finite? One reduction per kind of tensor, one host read."""
    floats = [t for t in tensors if t.is_floating_point() and t.numel()]
    if not floats:
        return True
    return bool(torch.stack([n.double() for n in torch._foreach_norm(floats, float("inf"))]).isfinite().all())
