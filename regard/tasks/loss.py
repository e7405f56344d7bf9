"""Costs of a prediction: what a head is asked to sum over its targets.

A cost takes `logits_NV, target_N` and returns the sum over the N rows in nats, so that sums of parts add up
to the sum of the whole, whatever the chunks, the accumulation and the number of processes.
"""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor
from torch.nn.functional import cross_entropy

from regard.errors import UsageError
from regard.nn.head import Cost, nll

__all__ = ["Convention", "Cost", "entropy", "nll", "smoothed"]
Convention = Literal["torch", "fairseq", "t2t"]


def smoothed(epsilon: float = 0.1, convention: Convention = "fairseq") -> Cost:
    """Label smoothing: the truth gets a little less than 1, all other words share the rest.

        sum_n -sum_v q(v) log p_n(v)

    Szegedy et al. 2016, section 7, arXiv 1512.00567; Vaswani et al. 2017, section 5.4, arXiv 1706.03762.
    Three libraries give three different numbers for the same epsilon, so the convention has a name:

    - `torch`: q(truth) = 1 - epsilon + epsilon / V, others epsilon / V (the prior includes the truth);
    - `fairseq`: q(truth) = 1 - epsilon, others epsilon / (V - 1);
    - `t2t`: as fairseq, less the entropy of q, so that a perfect answer costs 0 (Tensor2Tensor).
    """
    if not 0 <= epsilon < 1:
        raise UsageError(f"label smoothing must be at least 0 and less than 1, but is {epsilon}.")
    if epsilon == 0:
        return nll

    def cost(logits_NV: Tensor, target_N: Tensor) -> Tensor:
        vocab = logits_NV.shape[-1]
        # 1 - s = 1 - epsilon - epsilon / (V - 1) and s / V = epsilon / (V - 1): torch's form, with a larger s
        share = epsilon if convention == "torch" else epsilon * vocab / (vocab - 1)
        total = cross_entropy(logits_NV.float(), target_N, label_smoothing=share, reduction="sum")
        return total - len(target_N) * entropy(epsilon, vocab) if convention == "t2t" else total

    return cost


def entropy(epsilon: float, vocab: int) -> float:
    """The entropy of the smoothed truth, the least that its cross entropy can be.

    -(1 - epsilon) log(1 - epsilon) - epsilon log(epsilon / (V - 1))
    """
    if epsilon == 0:
        return 0.0
    return -(1 - epsilon) * math.log(1 - epsilon) - epsilon * math.log(epsilon / (vocab - 1))
