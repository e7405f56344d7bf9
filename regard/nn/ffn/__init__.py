"""What each token thinks by itself: `ffn` in a config.

dense     Vaswani et al. 2017, https://arxiv.org/abs/1706.03762
gated     Shazeer 2020, https://arxiv.org/abs/2002.05202
chunked   Kitaev et al. 2020, https://arxiv.org/abs/2001.04451
"""

from regard.nn.ffn.chunked import Chunked
from regard.nn.ffn.dense import Dense
from regard.nn.ffn.ffn import ACTIVATIONS, FFN, Activation
from regard.nn.ffn.gated import Gated

__all__ = ["ACTIVATIONS", "FFN", "Activation", "Chunked", "Dense", "Gated"]
