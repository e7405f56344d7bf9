"""From vectors to answers: `head` in a config.

linear   Press and Wolf 2017, https://arxiv.org/abs/1608.05859
masked   Devlin et al. 2019, https://arxiv.org/abs/1810.04805
pooled   the same, for sequences
"""

from regard.nn.head.cost import Convention, Cost, CrossEntropy, nll
from regard.nn.head.head import Head
from regard.nn.head.linear import Linear
from regard.nn.head.masked import Masked
from regard.nn.head.pooled import Pooled

__all__ = ["Convention", "Cost", "CrossEntropy", "Head", "Linear", "Masked", "Pooled", "nll"]
