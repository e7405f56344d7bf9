"""Blocks in depth: `stack` in a config.

sequential   Vaswani et al. 2017, https://arxiv.org/abs/1706.03762
reversible   Gomez et al. 2017, https://arxiv.org/abs/1707.04585; Kitaev et al. 2020 (Reformer)
"""

from regard.nn.stack.reversible import Reversible
from regard.nn.stack.sequential import Sequential
from regard.nn.stack.stack import Stack

__all__ = ["Reversible", "Sequential", "Stack"]
