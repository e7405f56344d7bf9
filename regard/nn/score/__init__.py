"""How a query is compared with a key: `score` in a config.

dot   Vaswani et al. 2017, https://arxiv.org/abs/1706.03762
"""

from regard.nn.score.dot import Dot
from regard.nn.score.score import Score

__all__ = ["Dot", "Score"]
