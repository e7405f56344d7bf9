"""Two streams that can be computed backwards, so that nothing in between is kept."""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import get_device_states, set_device_states

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.block import Block, Sublayer
from regard.nn.context import Context
from regard.nn.norm import Norm
from regard.nn.position import Position
from regard.nn.product import Linear
from regard.nn.residual import Add
from regard.nn.stack.sequential import Sequential
from regard.spec import Recipe, part


@part
class Reversible(Sequential):
    r"""Two streams; each sublayer reads one and adds to the other, which can be taken back.

        y1 = x1 + F(norm(x2)),   y2 = x2 + G(norm(y1))
        x2 = y2 - G(norm(y1)),   x1 = y1 - F(norm(x2))

    Gomez et al. 2017, https://arxiv.org/abs/1707.04585; Kitaev et al. 2020 (Reformer), section 3,
    https://arxiv.org/abs/2001.04451. Both streams begin as the input. Only the last output is kept for the
    backward pass, which computes each layer's input from its output: memory does not grow with depth. What
    a sublayer drew (dropout, hashes) is drawn again: torch's generators are put back to where they were.

    Options:
      block: one recipe for all layers, or a list that is cycled over depth; pre-norm, of two sublayers
      position: one scheme for all self-attentions of the stack; added to the input where it is of that kind
      enter: a norm after positions are added
      leave: a norm at the end; auto: the block's own
      dropout: on the input, after positions are added, and on the output if `leave_dropout`
      join: how the two streams leave: their mean, or a matrix of both side by side, after the norm
    """

    def __init__(
        self,
        dims: Dims,
        block: Recipe[Block] | list[Recipe[Block]],
        position: Recipe[Position] | None = None,
        enter: Recipe[Norm] | None = None,
        leave: Recipe[Norm] | Literal["auto"] | None = "auto",
        dropout: float = 0.0,
        leave_dropout: bool = False,
        join: Literal["mean", "matrix"] = "mean",
    ) -> None:
        super().__init__(dims, block, position, enter, leave, dropout, leave_dropout)
        for each in self.blocks:
            _sublayers(each)
        if self.position is not None and self.position.every:
            raise UsageError(
                f"{type(self.position).__name__} is added before every layer, which a reversible stack "
                "cannot take back; take stack sequential, or another position."
            )
        self.matrix = None
        if join == "matrix":
            self.leave = self._last(dims.but(width=2 * dims.width), leave)
            self.matrix = Linear(2 * dims.width, dims.width)

    def forward(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        """Enter, go down on two streams, leave on one."""
        x_BLD = super().forward(x_BLD, ctx)
        return x_BLD if self.matrix is None else self.matrix(x_BLD)

    def down(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        """Both streams through all layers."""
        if ctx.layers is not None:
            raise UsageError(
                "A reversible stack keeps nothing of its layers, so none can be asked what it said; take "
                "stack sequential."
            )
        layers = _Layers(self, ctx)
        if ctx.cache is None and torch.is_grad_enabled():
            y1, y2 = _Reversible.apply(x_BLD, x_BLD, layers, *layers.tensors)
        else:
            y1, y2 = layers.down(x_BLD, x_BLD, ctx)
        return (y1 + y2) / 2 if self.matrix is None else torch.cat([y1, y2], -1)


class _Layers:
    """The layers of one call: what each sublayer says, as often as it is asked."""

    def __init__(self, stack: Reversible, ctx: Context) -> None:
        self.position, self.ctx = stack.position, ctx
        self.pairs = [list(_sublayers(block).items()) for block in stack.blocks]
        # whatever a gradient may flow to, besides the streams
        shared = stack.position.parameters() if stack.position is not None else ()
        memory = (ctx.memory.x_BMD,) if ctx.memory is not None else ()
        found = {id(t): t for t in (*stack.blocks.parameters(), *shared, *memory)}
        self.tensors = [t for t in found.values() if t.requires_grad]
        self.training, self.device = stack.training, ctx.pos_BL.device
        self.randoms: dict[tuple[int, int], tuple[Tensor, list[Tensor]]] = {}
        kind = self.device.type
        self.cast = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)

    def down(self, x1: Tensor, x2: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """From the first layer to the last."""
        for depth in range(len(self.pairs)):
            x1 = x1 + self.say(depth, 0, x2, ctx)
            x2 = x2 + self.say(depth, 1, x1, ctx)
        return x1, x2

    def say(self, depth: int, which: int, x_BLD: Tensor, ctx: Context) -> Tensor:
        """What the first sublayer of a layer says, or the second."""
        if self.training:  # what it is about to draw (dropout, hashes) can be drawn again
            self.randoms[depth, which] = torch.get_rng_state(), get_device_states(x_BLD)[1]
        name, sublayer = self.pairs[depth][which]
        here = self.position.at(depth) if self.position is not None else None
        return sublayer.say(x_BLD, ctx.at(depth, position=here).at(name))

    def again(
        self, depth: int, which: int, x_BLD: Tensor, dy_BLD: Tensor
    ) -> tuple[Tensor, list[Tensor | None]]:
        """What was said, and the gradients of the stream it was said from and of all tensors."""
        ctx = self.ctx.but(tape=None, losses=None, known={})  # what layers share is made anew, to be learned
        x_BLD = x_BLD.detach().requires_grad_()
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices), torch.enable_grad(), torch.autocast(*self.cast):
            if self.training:
                host, others = self.randoms[depth, which]
                torch.set_rng_state(host)
                set_device_states(devices, others)
            y_BLD = self.say(depth, which, x_BLD, ctx)
        wanted = [x_BLD, *self.tensors]
        slopes = torch.autograd.grad(y_BLD, wanted, dy_BLD.to(y_BLD.dtype), allow_unused=True)
        return y_BLD.detach(), list(slopes)


class _Reversible(torch.autograd.Function):
    """Down without keeping anything, up again by taking back what each sublayer said."""

    @staticmethod
    def forward(ctx: Any, x1: Tensor, x2: Tensor, layers: _Layers, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        losses: dict[str, Tensor] | None = None if layers.ctx.losses is None else {}
        y1, y2 = layers.down(x1, x2, layers.ctx.but(losses=losses, known={}))
        if losses:
            raise UsageError(
                "A reversible stack keeps nothing of its layers, so that a loss inside them could not be "
                f"learned from, but {next(iter(losses))!r} has one; take stack sequential."
            )
        ctx.layers = layers
        ctx.save_for_backward(y1, y2)
        return y1, y2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy1: Tensor, dy2: Tensor) -> tuple[Tensor | None, ...]:
        layers: _Layers = ctx.layers
        y1, y2 = ctx.saved_tensors
        total: list[Tensor | None] = [None] * len(layers.tensors)
        for depth in reversed(range(len(layers.pairs))):
            said, (dx, *slopes) = layers.again(depth, 1, y1, dy2)
            y2, dy1 = y2 - said, dy1 + dx if dx is not None else dy1
            total = [_plus(a, b) for a, b in zip(total, slopes, strict=True)]
            said, (dx, *slopes) = layers.again(depth, 0, y2, dy1)
            y1, dy2 = y1 - said, dy2 + dx if dx is not None else dy2
            total = [_plus(a, b) for a, b in zip(total, slopes, strict=True)]
        return dy1, dy2, None, *total


def _plus(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def _sublayers(block: nn.Module) -> dict[str, Sublayer]:
    """The two sublayers of a block, which must be of the form x + F(norm(x))."""
    found = dict(cast(nn.ModuleDict, getattr(block, "sublayers", nn.ModuleDict())).items())
    sublayers = {name: s for name, s in found.items() if isinstance(s, Sublayer)}
    if len(sublayers) != 2:
        raise UsageError(
            "A reversible stack has two streams, so its blocks must have two sublayers, but "
            f"{type(block).__name__} has {len(sublayers)}; take stack sequential, or other blocks."
        )
    for name, sublayer in sublayers.items():
        if sublayer.order != "pre" or not isinstance(sublayer.residual, Add):
            raise UsageError(
                f"A reversible stack takes back what was added to the stream, so {name!r} must be pre-norm "
                f"with a plain sum, but is {sublayer.order}-norm with {type(sublayer.residual).__name__}; "
                "change the block, or take stack sequential."
            )
    return sublayers
