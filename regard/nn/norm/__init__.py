"""What keeps the stream at one scale: `norm` in a config.

layer   Ba et al. 2016, https://arxiv.org/abs/1607.06450
rms     Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467
"""

from regard.nn.norm.layer import Layer
from regard.nn.norm.norm import Norm
from regard.nn.norm.rms import Rms

__all__ = ["Layer", "Norm", "Rms"]
