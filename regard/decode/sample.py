"""Drawing the next token: the filters, and a random stream for each row.

Every draw is a pure function of (seed, prompt, source, number of the draw, place in the answer, token): there
is no generator whose state could depend on batch-mates. The same prompt and seed give the same tokens alone,
in a batch, in another order and streamed. A prompt that stands in a batch twice gets the same answer twice;
different draws for one prompt are asked for with nbest.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.decode.rules import Rules

# The multipliers of SplitMix64 (Steele, Lea and Flood 2014, section 5) as signed numbers: int64 wraps around.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def key(seed: int, prompt: Sequence[int], source: Sequence[int] | None, draw: int = 0) -> int:
    """The number that names a row's random stream: a 64-bit hash of what the row is about."""
    words = array("q", [seed, draw, len(prompt), *prompt, -1, *(source or ())])
    return int.from_bytes(hashlib.blake2b(words.tobytes(), digest_size=8).digest(), "little", signed=True)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; `>>` alone would copy the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """SplitMix64's output function: 64 bits in, 64 well-mixed bits out, one to one."""
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


def noise(key_N: Tensor, place: int, ids_NV: Tensor) -> Tensor:
    """Standard exponential numbers, one for each token, fixed by (key, place, token)."""
    stream_N1 = mix(key_N + torch.full_like(key_N, place + 1) * _GOLDEN)[:, None]
    bits_NV = mix(stream_N1 + (ids_NV + 1) * _GOLDEN)
    uniform_NV = (_shift(bits_NV, 11).double() + 0.5) * 2.0**-53
    return -uniform_NV.log()


def penalise(logits_NV: Tensor, seen_NV: Tensor, repetition: float) -> Tensor:
    """Make tokens that were there before less likely: x / r where x > 0, x * r where x < 0.

    Keskar et al. 2019 (CTRL), section 4.1, arXiv 1909.05858. Differs from the paper, which divides every
    logit and so would make tokens with a negative logit more likely.
    """
    changed_NV = torch.where(logits_NV > 0, logits_NV / repetition, logits_NV * repetition)
    return torch.where(seen_NV, changed_NV, logits_NV)


def filtered(logits_NV: Tensor, rules: Rules) -> tuple[Tensor, Tensor]:
    """What may be drawn: (log-weights, ids), most probable first where a filter had to sort; -inf is
    excluded.

    In this order, each on what the one before has left:
        temperature t:  x / t
        top_k:          the k largest (among equals at the border, any)
        top_p:          sorted by probability, a token stays while the mass before it is below p:
                        the smallest set with mass >= p, the token that crosses p included (Holtzman et al.
                        2020, section 3.1, arXiv 1904.09751)
        min_p:          p(token) >= min_p * max p (Nguyen et al. 2024, section 3, arXiv 2407.01082)
    """
    x_NV = logits_NV.double() / rules.temperature
    size = x_NV.shape[-1]
    if rules.top_k is not None and rules.top_k < size:
        x_NV, ids_NV = x_NV.topk(rules.top_k, dim=-1)
    elif rules.top_p is not None and rules.top_p < 1:
        x_NV, ids_NV = x_NV.sort(dim=-1, descending=True, stable=True)
    else:
        ids_NV = torch.arange(size, device=x_NV.device).expand_as(x_NV)
    if rules.top_p is not None and rules.top_p < 1:
        p_NV = x_NV.softmax(-1)
        before_NV = p_NV.cumsum(-1) - p_NV
        before_NV[:, 0] = 0  # rounding must never exclude the best one
        x_NV = x_NV.masked_fill(before_NV >= rules.top_p, -torch.inf)
    if rules.min_p:
        low_N1 = x_NV.amax(-1, keepdim=True) + torch.tensor(rules.min_p, dtype=x_NV.dtype).log()
        x_NV = x_NV.masked_fill(x_NV < low_N1, -torch.inf)
    return x_NV, ids_NV


def draw(logits_NV: Tensor, rules: Rules, key_N: Tensor, place: int) -> Tensor:
    """One token for each row, with the probabilities that are left after the filters.

        argmax_i p_i / e_i,  e_i independent standard exponential

    is distributed as p (the race of exponential clocks; the same as adding Gumbel noise to the logits).
    Unlike a walk through cumulated probabilities, a change of p in the last bit changes the draw only with
    the probability of that change, so that batch-mates, which do change last bits, practically never change
    an answer.
    """
    if rules.temperature == 0:
        return logits_NV.argmax(-1)
    x_NV, ids_NV = filtered(logits_NV, rules)
    best_N1 = (x_NV - noise(key_N, place, ids_NV).log()).argmax(-1, keepdim=True)
    return ids_NV.gather(-1, best_N1).squeeze(-1)
