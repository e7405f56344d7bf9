"""How tokens learn of each other: a sublayer in a config.

attention   Vaswani et al. 2017, https://arxiv.org/abs/1706.03762; GQA and MQA with `groups`
latent      DeepSeek-AI 2024 (DeepSeek-V2), https://arxiv.org/abs/2405.04434
lsh         Kitaev et al. 2020 (Reformer), https://arxiv.org/abs/2001.04451
"""

from regard.nn.mixer.attention import Attention
from regard.nn.mixer.latent import Latent
from regard.nn.mixer.lsh import Lsh
from regard.nn.mixer.mixer import Mixer

__all__ = ["Attention", "Latent", "Lsh", "Mixer"]
