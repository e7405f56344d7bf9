"""One step of depth: `block` in a config.

serial   Vaswani et al. 2017, https://arxiv.org/abs/1706.03762
"""

from regard.nn.block.block import Block, Body, Order, Sublayer
from regard.nn.block.serial import Serial

__all__ = ["Block", "Body", "Order", "Serial", "Sublayer"]
