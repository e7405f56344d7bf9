"""Blocks in depth: `stack` in a config.

sequential   Vaswani et al. 2017, https://arxiv.org/abs/1706.03762
"""

from regard.nn.stack.sequential import Sequential
from regard.nn.stack.stack import Stack

__all__ = ["Sequential", "Stack"]
