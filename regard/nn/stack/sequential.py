"""Block after block, each with its own weights."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.block import Block
from regard.nn.compress import settle
from regard.nn.context import Context
from regard.nn.dropout import Dropout
from regard.nn.norm import Norm
from regard.nn.position import Position
from regard.nn.stack.stack import Stack
from regard.spec import Recipe, part


@part
class Sequential(Stack):
    r"""Positions in, then block after block, each with its own weights, then the norm that pre-norm needs.

        x = dropout(norm_in(position(x)));   x = block_n(x), n = 1 .. N;   x = norm_out(x)

    Vaswani et al. 2017, section 3.1, https://arxiv.org/abs/1706.03762.

    Options:
      block: one recipe for all layers, or a list that is cycled over depth
      position: one scheme for all self-attentions of the stack; added to the input where it is of that kind
      enter: a norm after positions are added (BERT)
      leave: a norm at the end; auto: the block's own if its blocks are pre-norm, else none
      dropout: on the input, after positions are added, and on the output if `leave_dropout`
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
    ) -> None:
        super().__init__()
        cycle = block if isinstance(block, list) else [block]
        if not cycle:
            raise UsageError("A stack must be given at least one block, but the list is empty.")
        self.position = position.build(dims) if position else None
        self.enter = enter.build(dims) if enter else None
        self.blocks = nn.ModuleList(cycle[depth % len(cycle)].build(dims) for depth in range(dims.layers))
        settle(self.blocks, self.position)
        self.leave = self._last(dims, leave)
        self.dropout = Dropout(dropout)
        self.leave_dropout = Dropout(dropout if leave_dropout else 0.0)

    def forward(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        """Enter, go down, leave."""
        if self.position is not None:
            x_BLD = self.position.at(0).add(x_BLD, ctx.pos_BL)
        if self.enter is not None:
            x_BLD = self.enter(x_BLD)
        x_BLD = self.down(self.dropout(x_BLD), ctx)
        if self.leave is not None:
            x_BLD = self.leave(x_BLD)
        return self.leave_dropout(x_BLD)  # type: ignore[no-any-return]

    def down(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        """Block after block."""
        for depth, block in enumerate(self.blocks):
            here = self.position.at(depth) if self.position is not None else None
            if here is not None and here.every and depth:
                x_BLD = here.add(x_BLD, ctx.pos_BL)
            x_BLD = block(x_BLD, ctx.at(depth, position=here))
            if ctx.layers is not None:
                ctx.layers.append(x_BLD)
        return x_BLD

    def _last(self, dims: Dims, leave: Recipe[Norm] | Literal["auto"] | None) -> Norm | None:
        last = self.blocks[-1]
        assert isinstance(last, Block)
        if leave == "auto":
            leave = last.last_norm if last.order == "pre" else None
        return leave.build(dims) if isinstance(leave, Recipe) else None
