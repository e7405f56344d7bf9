"""Keys and values made fewer before they are looked at: `compress` in a config."""

from regard.nn.compress.compress import Compress

__all__ = ["Compress"]
