"""Optimizers, all torch's own: this file only says which parameter is given to which, with what decay.

`make(named, device)` returns one or two torch optimizers whose learning rate the loop sets before each step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer as TorchOptimizer

from regard.spec import part

Named = Sequence[tuple[str, Parameter]]
Decays = Literal["matrices", "all"]


class Optimizer(ABC):
    """How gradients become updates. A family: adamw adafactor muon."""

    shards = True  # can its state be split over ranks by FSDP2?

    @abstractmethod
    def make(self, named: Named) -> list[TorchOptimizer]:
        """Torch's optimizers over these named parameters."""


def groups(named: Named, decay: float, decays: Decays) -> list[dict[str, Any]]:
    """Two groups: weight decay for matrices (2-D and more), none for biases and norms.

    A decayed norm or bias makes the function smaller, not simpler; leaving them out has been common since
    GPT-2. `decays="all"` decays everything.
    """
    with_decay = [p for _, p in named if p.ndim >= 2 or decays == "all"]
    without = [p for _, p in named if p.ndim < 2 and decays != "all"]
    both = [{"params": with_decay, "weight_decay": decay}, {"params": without, "weight_decay": 0.0}]
    return [group for group in both if group["params"]]


@part
class Adamw(Optimizer):
    """Adam with decoupled weight decay, fused into one kernel.

        m = b1 m + (1 - b1) g;   v = b2 v + (1 - b2) g^2
        w = w - lr (m^ / (sqrt(v^) + eps) + decay w),   m^ = m / (1 - b1^t),  v^ = v / (1 - b2^t)

    Kingma and Ba 2015 (arXiv:1412.6980); Loshchilov and Hutter 2019 (arXiv:1711.05101). The Transformer paper
    used betas 0.9, 0.98 and eps 1e-9 without decay (Vaswani et al. 2017, section 5.3).

    Options:
        betas: how slowly the two averages forget.
        eps: added to the root.
        decay: weight decay, multiplied by the learning rate.
        decays: matrices (parameters of 2 and more dimensions) or all.
    """

    def __init__(
        self,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
        decay: float = 0.01,
        decays: Decays = "matrices",
    ) -> None:
        self.betas, self.eps, self.decay, self.decays = (betas[0], betas[1]), eps, decay, decays

    def make(self, named: Named) -> list[TorchOptimizer]:
        """One fused AdamW."""
        parameters = groups(named, self.decay, self.decays)
        return [torch.optim.AdamW(parameters, betas=self.betas, eps=self.eps, fused=_fused(named))]


@part
class Adafactor(Optimizer):
    """Adam's second moment kept only as its row and column means: memory n + m instead of n m.

    Shazeer and Stern 2018 (arXiv:1804.04235); T5 was trained with it.
    Torch's form has no momentum and multiplies the learning rate by max(1e-3, RMS(w)), so `lr` is a relative
    step size; T5's was 1 / sqrt(max(t, 10^4)): `lr: 0.01` and
    `schedule: {kind: inverse_sqrt, warmup: 10000, start: flat}`.

    Options:
        decay: weight decay, multiplied by the learning rate.
        decays: matrices or all.
        clipping: the update's root mean square is kept below this.
    """

    shards = False  # torch computes the factored means in place, which DTensor refuses (torch 2.13)

    def __init__(self, decay: float = 0.0, decays: Decays = "matrices", clipping: float = 1.0) -> None:
        self.decay, self.decays, self.clipping = decay, decays, clipping

    def make(self, named: Named) -> list[TorchOptimizer]:
        """One Adafactor over all parameters."""
        parameters = groups(named, self.decay, self.decays)
        return [torch.optim.Adafactor(parameters, d=self.clipping)]


@part
class Muon(Optimizer):
    """Momentum made orthogonal for the hidden matrices, AdamW for everything else.

        B = momentum B + G;    w = w - lr (0.2 sqrt(max(n, m)) O + decay w),   O = U V^T of B = U S V^T

    O is found by five Newton-Schulz iterations. The factor 0.2 sqrt(max(n, m)) gives the update AdamW's size,
    so that one learning rate serves both. Embeddings and heads are not hidden matrices and go to AdamW.
    Jordan et al. 2024; the scale from Liu et al. 2025, section 2.2 (arXiv:2502.16982).

    Options:
        momentum: of the matrices' average.
        betas: AdamW's, for the rest.
        decay: weight decay, multiplied by the learning rate.
        decays: matrices or all.
    """

    def __init__(
        self,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
        decay: float = 0.1,
        decays: Decays = "matrices",
    ) -> None:
        self.momentum, self.betas, self.decay, self.decays = momentum, (betas[0], betas[1]), decay, decays

    def make(self, named: Named) -> list[TorchOptimizer]:
        """Muon over the hidden matrices, if there are any, and AdamW over the rest."""
        hidden = [(name, p) for name, p in named if is_hidden(name, p)]
        rest = [(name, p) for name, p in named if not is_hidden(name, p)]
        made: list[TorchOptimizer] = []
        if hidden:
            muon = torch.optim.Muon(
                [p for _, p in hidden],
                momentum=self.momentum,
                weight_decay=self.decay,
                adjust_lr_fn="match_rms_adamw",
            )
            made.append(muon)
        if rest:
            rest_groups = groups(rest, self.decay, self.decays)
            made.append(torch.optim.AdamW(rest_groups, betas=self.betas, fused=_fused(rest)))
        return made


def is_hidden(name: str, parameter: Tensor) -> bool:
    """A weight matrix between two hidden layers: 2-D, and neither an embedding nor a head."""
    places = name.split(".")
    return parameter.ndim == 2 and not any(p.startswith(("embed", "head", "position")) for p in places)


def _fused(named: Named) -> bool:
    return all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for _, p in named)


def set_lr(optimizers: Iterable[TorchOptimizer], lr: float) -> None:
    """Give every group this learning rate."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr
