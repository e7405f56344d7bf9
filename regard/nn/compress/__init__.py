"""Keys and values made fewer before they are looked at: `compress` in a config.

linformer     Wang et al. 2020, https://arxiv.org/abs/2006.04768
convolution   Liu et al. 2018, https://arxiv.org/abs/1801.10198 (memory-compressed attention)
"""

from regard.nn.compress.compress import Compress, settle
from regard.nn.compress.convolution import Convolution
from regard.nn.compress.linformer import Linformer

__all__ = ["Compress", "Convolution", "Linformer", "settle"]
