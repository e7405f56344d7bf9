"""Keys and values made fewer before they are looked at: `compress` in a config.

linformer   Wang et al. 2020, https://arxiv.org/abs/2006.04768
"""

from regard.nn.compress.compress import Compress, settle
from regard.nn.compress.linformer import Linformer

__all__ = ["Compress", "Linformer", "settle"]
