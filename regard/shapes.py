"""The shape alphabet: one letter, one meaning, in the whole library.

Tensors whose shape matters carry it as a suffix (`q_BHLK`), and einsum strings use the same letters.
"""

from __future__ import annotations

LETTERS = {
    "B": "batch: sequences side by side",
    "L": "length: queries, or the tokens of the stream at hand",
    "M": "memory: keys, or the tokens looked at",
    "D": "width of the stream",
    "H": "heads",
    "G": "groups of heads that share keys and values",
    "K": "width of one head",
    "F": "hidden width of a feed-forward layer",
    "V": "vocabulary",
    "E": "experts",
    "N": "rows of any kind, flattened; also depth",
    "C": "classes or channels",
    "R": "relative places",
    "S": "segment",
    "P": "parts of a block",
}
