"""Which keys a query may see: `pattern` in a config. Patterns combine with &, | and per head.

full      Vaswani et al. 2017, https://arxiv.org/abs/1706.03762 (encoder)
causal    the same (decoder)
prefix    Raffel et al. 2020, https://arxiv.org/abs/1910.10683
window    Beltagy et al. 2020, https://arxiv.org/abs/2004.05150
all_of    intersection        any_of    union        per_head    each head its own
"""

from regard.nn.pattern.causal import Causal
from regard.nn.pattern.full import Full
from regard.nn.pattern.pattern import AllOf, AnyOf, Pattern, PerHead
from regard.nn.pattern.prefix import Prefix
from regard.nn.pattern.window import Window

__all__ = ["AllOf", "AnyOf", "Causal", "Full", "Pattern", "PerHead", "Prefix", "Window"]
