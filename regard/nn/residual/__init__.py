"""How what a body says is joined to the stream: `residual` in a config.

add      He et al. 2016, https://arxiv.org/abs/1512.03385
scaled   Wang et al. 2022, https://arxiv.org/abs/2203.00555
"""

from regard.nn.residual.add import Add
from regard.nn.residual.residual import Residual
from regard.nn.residual.scaled import Scaled

__all__ = ["Add", "Residual", "Scaled"]
