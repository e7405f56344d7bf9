"""How a query is compared with a key: `score` in a config.

dot              Vaswani et al. 2017, https://arxiv.org/abs/1706.03762
multiplicative   Luong et al. 2015, https://arxiv.org/abs/1508.04025
reduced_rank     the same with a matrix of low rank
additive         Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473
"""

from regard.nn.score.additive import Additive
from regard.nn.score.dot import Dot
from regard.nn.score.multiplicative import Multiplicative
from regard.nn.score.reduced_rank import ReducedRank
from regard.nn.score.score import Score

__all__ = ["Additive", "Dot", "Multiplicative", "ReducedRank", "Score"]
