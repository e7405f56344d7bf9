"""What answers cost, and the sum of it over many, for which their logits are never there all at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import UsageError
from regard.nn.sums import wide

Cost = Callable[[Tensor, Tensor], Tensor]  # (logits_NV, target_N) -> the sum over the N rows, in nats
Convention = Literal["torch", "fairseq", "t2t"]
PIECE = 2**22  # logits that are there at a time while something is learned on a CPU: its cache holds 16 MiB
LARGEST = 2**25  # elsewhere, and where nothing is learned


@dataclass(frozen=True)
class CrossEntropy:
    r"""How much the truth surprises; of the truth, a little may be shared by all other words.

        cost = -sum_n sum_v q_n(v) log p_n(v),    slope: d cost / d logits_n(v) = p_n(v) - q_n(v)

    Szegedy et al. 2016, section 7, arXiv 1512.00567; Vaswani et al. 2017, section 5.4, arXiv 1706.03762.
    Three libraries give three different numbers for the same epsilon, so the convention has a name:

    - `torch`: q(truth) = 1 - epsilon + epsilon / V, others epsilon / V (the prior includes the truth);
    - `fairseq`: q(truth) = 1 - epsilon, others epsilon / (V - 1);
    - `t2t`: as fairseq, less the entropy of q, so that a perfect answer costs 0 (Tensor2Tensor).

    Sums of parts add up to the sum of the whole, whatever the pieces and the number of processes.
    """

    epsilon: float = 0.0
    convention: Convention = "fairseq"

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < 1:
            raise UsageError(f"label smoothing must be at least 0 and less than 1, but is {self.epsilon}.")

    def __call__(self, logits_NV: Tensor, target_N: Tensor) -> Tensor:
        """The cost, by PyTorch's function."""
        share = self._share(logits_NV.shape[1])
        total = F.cross_entropy(wide(logits_NV), target_N, label_smoothing=share, reduction="sum")
        return total - self._least(logits_NV)

    def slope_(self, logits_NV: Tensor, target_N: Tensor) -> Tensor:
        """The cost; its slope is written where the logits stood."""
        at_N1, share, vocab = target_N[:, None], self._share(logits_NV.shape[1]), logits_NV.shape[1]
        most_N, right_N1 = logits_NV.amax(1), logits_NV.gather(1, at_N1)
        total = share / vocab * logits_NV.sum() if share else 0.0
        p_NV = torch.softmax(logits_NV, 1, out=logits_NV)
        log_sum_N = most_N - p_NV.amax(1).log()  # p of the largest is exp(it - log sum exp)
        cost = (log_sum_N - (1 - share) * right_N1[:, 0]).sum() - total - self._least(logits_NV)
        slope_NV = p_NV.sub_(share / vocab) if share else p_NV
        slope_NV.scatter_add_(1, at_N1, p_NV.new_full((1, 1), share - 1).expand_as(at_N1))
        return cost

    def _share(self, vocab: int) -> float:
        """How much of the truth all V words share evenly, itself included: torch's form of all three."""
        if self.epsilon == 0 or self.convention == "torch":
            return self.epsilon
        return self.epsilon * vocab / (vocab - 1)

    def _least(self, logits_NV: Tensor) -> float:
        if self.convention != "t2t":
            return 0.0
        return len(logits_NV) * entropy(self.epsilon, logits_NV.shape[1])


nll = CrossEntropy()  # sum_n -log p(target_n)


def entropy(epsilon: float, vocab: int) -> float:
    """The entropy of the smoothed truth, the least that its cross entropy can be.

    -(1 - epsilon) log(1 - epsilon) - epsilon log(epsilon / (V - 1))
    """
    if epsilon == 0:
        return 0.0
    return -(1 - epsilon) * math.log(1 - epsilon) - epsilon * math.log(epsilon / (vocab - 1))


class Summed(torch.autograd.Function):
    r"""sum_n cost(W x_n + b, target_n), piece by piece: slopes are made as soon as the logits are there.

        dx_n = s_n W,   dW = sum_n s_n^T x_n,   db = sum_n s_n,   s = d cost / d logits

    So no logits are kept for the backward pass, nor computed a second time, and they never leave the cache.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        target_N: Tensor,
        cost: CrossEntropy,
    ) -> Tensor:
        device, asked, (V, D) = x_ND.device.type, ctx.needs_input_grad, weight_VD.shape
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x_ND.dtype
        total = wide(x_ND.new_zeros(()))
        dx_ND = torch.empty_like(x_ND) if asked[0] else None
        dw_VD = torch.zeros_like(weight_VD, dtype=total.dtype) if asked[1] else None
        db_V = torch.zeros_like(bias_V, dtype=total.dtype) if bias_V is not None and asked[2] else None
        with torch.autocast(device, enabled=False):
            w_VD, b_V = weight_VD.to(dtype), None if bias_V is None else wide(bias_V)
            # as many rows as the matrix is wide, at least: the slope of the matrix is added for each piece
            rows = max(PIECE // V, D) if device == "cpu" else len(x_ND)
            rows = max(1, min(rows, LARGEST // V, len(x_ND)))
            made_NV = x_ND.new_empty(rows, V, dtype=dtype)  # every piece is written to the same place
            for start in range(0, len(x_ND), rows):
                x, target = x_ND[start : start + rows].to(dtype), target_N[start : start + rows]
                s_NV = torch.mm(x, w_VD.mT, out=made_NV[: len(x)])
                wide_NV = wide(s_NV) if b_V is None else wide(s_NV) + b_V
                total += cost.slope_(wide_NV, target)
                s_NV.copy_(wide_NV)
                if dx_ND is not None:
                    dx_ND[start : start + rows] = s_NV @ w_VD
                if dw_VD is not None and dw_VD.dtype == dtype:
                    dw_VD.addmm_(s_NV.mT, x)
                elif dw_VD is not None:
                    dw_VD += s_NV.mT @ x
                if db_V is not None:
                    db_V += wide_NV.sum(0)
        ctx.save_for_backward(dx_ND, dw_VD, db_V)
        ctx.dtypes = x_ND.dtype, weight_VD.dtype, None if bias_V is None else bias_V.dtype
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise UsageError(
                "This loss can be differentiated once, but a graph of its gradient is asked for; give the "
                "head a cost of your own, such as `lambda logits, target: nll(logits, target)`."
            )
        slopes = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        dx, dw, db = (None if t is None else (t * grad).to(dtype) for t, dtype in slopes)
        return dx, dw, db, None, None
