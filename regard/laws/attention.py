"""The law of attention itself: each way to the sum gives the same sum, and the same gradients."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from unittest.mock import patch

import torch
from torch import Tensor

import regard.nn.attend
from regard.dims import Dims
from regard.errors import CheckFailed
from regard.laws.asking import gap, tokens, weigh
from regard.laws.models import SMALL
from regard.laws.subjects import DIMS, enlivened
from regard.nn.attend import attend
from regard.nn.context import Context, How, places, plain_places
from regard.nn.pattern import (
    AllOf,
    AnyOf,
    Causal,
    Dilated,
    Fixed,
    Full,
    GlobalTokens,
    Local,
    Local2D,
    Pattern,
    PerHead,
    Prefix,
    Strided,
    Window,
)
from regard.nn.position import Position
from regard.nn.score import Dot, Score
from regard.spec import Recipe, of

PATTERNS: dict[str, Recipe[Pattern]] = {
    "full": of(Full),
    "causal": of(Causal),
    "window": of(Window, width=5),
    "window both": of(Window, width=5, both=True),
    "prefix": of(Prefix, length=6),
    "all_of": of(AllOf, patterns=[of(Prefix, length=4), of(Window, width=7, both=True)]),
    "any_of": of(AnyOf, patterns=[of(Window, width=3, both=True), of(Window, width=9)]),
    "per_head": of(PerHead, patterns=[of(Window, width=3), of(Causal), of(Window, width=5, both=True)]),
    "per_head windows": of(PerHead, patterns=[of(Window, width=2), of(Window, width=11)]),
}
SPARSE: dict[str, Recipe[Pattern]] = {
    "local": of(Local, width=5, memory=3),
    "local_2d": of(Local2D, across=6, block=(2, 3), flange=(1, 2)),
    "strided": of(Strided, stride=4),
    "fixed": of(Fixed, stride=4, summaries=1),
    "dilated": of(Dilated, width=3, step=3),
    "global_tokens": of(AnyOf, patterns=[of(Window, width=3), of(GlobalTokens, count=2)]),
    "global_tokens both": of(
        AnyOf, patterns=[of(Window, width=3, both=True), of(GlobalTokens, count=2, both=True)]
    ),
}
GROUPS = {"MHA": 4, "GQA": 2, "MQA": 1}


def ways_agree(
    position: Recipe[Position] | None,
    pattern: Recipe[Pattern],
    groups: int = 4,
    pads: str = "plain",
    prefix: Sequence[int] | None = None,
    score: Recipe[Score] = of(Dot),
) -> float:
    """explicit == fused == blockwise: in y, and in the gradients of q, k, v and the position's parameters.

    `prefix` gives each of the three rows a prefix of its own.
    """
    looks = _Looks(position, pattern, groups, pads, prefix, score)
    with patch.object(regard.nn.attend, "BLOCK", SMALL):
        explicit, fused, blockwise = (looks.with_gradients(how) for how in ("explicit", "fused", "blockwise"))
    return max(*map(gap, fused, explicit), *map(gap, blockwise, explicit))


def flex_agrees(
    position: Recipe[Position] | None,
    pattern: Recipe[Pattern],
    groups: int = 2,
    pads: str = "plain",
    prefix: Sequence[int] | None = None,
) -> float:
    """flex == explicit in y. PyTorch has no gradients of FlexAttention without a GPU."""
    looks = _Looks(position, pattern, groups, pads, prefix, of(Dot))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", UserWarning)  # on a CPU, FlexAttention says that it is slow
        return gap(looks.answer("flex")[0], looks.answer("explicit")[0])


class _Looks:
    """One attention, its inputs and its positions, ready to be computed in any way."""

    def __init__(
        self,
        position: Recipe[Position] | None,
        pattern: Recipe[Pattern],
        groups: int,
        pads: str,
        prefix: Sequence[int] | None,
        score: Recipe[Score],
    ) -> None:
        dims, random = Dims(**DIMS), torch.Generator().manual_seed(1)
        self.position = None if position is None else enlivened(position.build(dims.but(layers=1)))
        self.pattern, self.score = pattern.build(dims), score.build(dims)
        ids_BL = tokens(3, 21, pads)
        pos_BL = plain_places(0, 21, ids_BL.device) if pads == "plain" else places(ids_BL)
        prefix_B = None if prefix is None else torch.tensor(prefix)
        self.ctx = Context(pos_BL, pads == "plain", prefix_B=prefix_B)
        self.real_B1L1 = (ids_BL >= 0)[:, None, :, None]
        self.x_BLD = torch.randn(3, 21, dims.width, generator=random)
        shapes = [(dims.width, heads * dims.size) for heads in (dims.heads, groups, groups)]
        self.matrices = [torch.randn(shape, generator=random) / 3 for shape in shapes]

    def answer(self, how: How) -> tuple[Tensor, list[Tensor]]:
        """What each real query reads, and everything it was made of."""
        x_BLD, place, pos_BL = self.x_BLD.clone().requires_grad_(), self.position, self.ctx.pos_BL
        into_BLD = x_BLD if place is None else place.add(x_BLD, pos_BL)
        q, k, v = ((into_BLD @ m).unflatten(-1, (-1, 4)).transpose(1, 2) for m in self.matrices)
        turned, k = (q, k) if place is None else place.turn(q, k, pos_BL)
        raw, seen = (
            (q, self.pattern) if place is None else (place.ask(q, into_BLD), place.narrow(self.pattern))
        )
        ctx, score = self.ctx.but(how=how, known={}), self.score
        y = attend(turned, k, v, pos_BL, ctx, score=score, pattern=seen, position=place, raw_BHLK=raw)
        if not bool(y.isfinite().all()):
            raise CheckFailed(f"The {how} way must never make what is not a number, but it does.")
        return y.masked_fill(~self.real_B1L1, 0.0), [x_BLD, q, k, v, *(place.parameters() if place else ())]

    def with_gradients(self, how: How) -> list[Tensor]:
        """The same, followed by the gradients."""
        y, inputs = self.answer(how)
        return [y, *torch.autograd.grad(weigh(y), inputs)]
