"""Where a token is: `position` in a config, of the stack (shared by its layers) or of one attention.

sinusoidal     Vaswani et al. 2017, https://arxiv.org/abs/1706.03762
learned        Gehring et al. 2017, https://arxiv.org/abs/1705.03122
coordinate     Dehghani et al. 2019, https://arxiv.org/abs/1807.03819
grid           Parmar et al. 2018, https://arxiv.org/abs/1802.05751; Child et al. 2019, https://arxiv.org/abs/1904.10509
axial          Kitaev et al. 2020, https://arxiv.org/abs/2001.04451
concatenated   beside the token instead of added to it
rotary         Su et al. 2021, https://arxiv.org/abs/2104.09864
shaw           Shaw et al. 2018, https://arxiv.org/abs/1803.02155
t5_bias        Raffel et al. 2020, https://arxiv.org/abs/1910.10683
transformer_xl Dai et al. 2019, https://arxiv.org/abs/1901.02860
alibi          Press et al. 2022, https://arxiv.org/abs/2108.12409
adaptive_span  Sukhbaatar et al. 2019, https://arxiv.org/abs/1905.07799
"""

from regard.nn.position.adaptive_span import AdaptiveSpan
from regard.nn.position.alibi import Alibi
from regard.nn.position.axial import Axial
from regard.nn.position.concatenated import Concatenated
from regard.nn.position.coordinate import Coordinate
from regard.nn.position.grid import Grid
from regard.nn.position.learned import Learned
from regard.nn.position.position import Position
from regard.nn.position.rotary import Rotary
from regard.nn.position.shaw import Shaw
from regard.nn.position.sinusoidal import Sinusoidal
from regard.nn.position.t5_bias import T5Bias
from regard.nn.position.transformer_xl import TransformerXL

__all__ = [
    "AdaptiveSpan",
    "Alibi",
    "Axial",
    "Concatenated",
    "Coordinate",
    "Grid",
    "Learned",
    "Position",
    "Rotary",
    "Shaw",
    "Sinusoidal",
    "T5Bias",
    "TransformerXL",
]
