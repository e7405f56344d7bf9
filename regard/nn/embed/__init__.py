"""From what is given to vectors: `embed` in a config.

tokens   Vaswani et al. 2017, https://arxiv.org/abs/1706.03762; segments of Devlin et al. 2019
"""

from regard.nn.embed.embed import Embed
from regard.nn.embed.tokens import Tokens

__all__ = ["Embed", "Tokens"]
