"""Which keys a query may see: `pattern` in a config. Patterns combine with &, | and per head.

full            Vaswani et al. 2017, https://arxiv.org/abs/1706.03762 (encoder)
causal          the same (decoder)
prefix          Raffel et al. 2020, https://arxiv.org/abs/1910.10683
window          Beltagy et al. 2020, https://arxiv.org/abs/2004.05150
dilated         the same
global_tokens   the same; with window by any_of
local           Parmar et al. 2018, https://arxiv.org/abs/1802.05751 (1D blocks)
local_2d        the same (2D blocks)
strided         Child et al. 2019, https://arxiv.org/abs/1904.10509
fixed           the same
all_of          intersection
any_of          union
per_head        each head its own
"""

from regard.nn.pattern.causal import Causal
from regard.nn.pattern.dilated import Dilated
from regard.nn.pattern.fixed import Fixed
from regard.nn.pattern.full import Full
from regard.nn.pattern.global_tokens import GlobalTokens
from regard.nn.pattern.lanes import Lanes
from regard.nn.pattern.local import Local
from regard.nn.pattern.local_2d import Local2D
from regard.nn.pattern.pattern import AllOf, AnyOf, Pattern, PerHead
from regard.nn.pattern.prefix import Prefix
from regard.nn.pattern.strided import Strided
from regard.nn.pattern.window import Window

__all__ = [
    "AllOf",
    "AnyOf",
    "Causal",
    "Dilated",
    "Fixed",
    "Full",
    "GlobalTokens",
    "Lanes",
    "Local",
    "Local2D",
    "Pattern",
    "PerHead",
    "Prefix",
    "Strided",
    "Window",
]
