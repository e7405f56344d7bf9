"""A picture of who sees whom in the sparse patterns, in the terminal or as a file.

    python examples/patterns.py [docs/patterns.png]

A row is a query, a column a key; sequences of 36 tokens, four heads where heads differ.
"""

from __future__ import annotations

import sys
from pathlib import Path

from regard.look.pattern import read_pattern, seen, text_pattern

LENGTH = 36
PATTERNS = {
    "causal": "causal",
    "window (Longformer)": "{kind: window, width: 6}",
    "local (Image Transformer)": "{kind: local, width: 9, memory: 9}",
    "local_2d (Image Transformer)": "{kind: local_2d, across: 6, block: [3, 3], flange: [1, 2]}",
    "strided (Sparse Transformer)": "{kind: strided, stride: 6}",
    "fixed (Sparse Transformer)": "{kind: fixed, stride: 6, summaries: 1}",
    "dilated": "{kind: dilated, width: 6, step: 3}",
    "window and global tokens": (
        "{kind: any_of, patterns: [{kind: window, width: 4, both: true}, "
        "{kind: global_tokens, count: 2, both: true}]}"
    ),
}


def show() -> None:
    """Print them one after the other."""
    for title, said in PATTERNS.items():
        print(f"{title}\n{text_pattern(read_pattern(said, 18), 18, plain=True)}\n")


def draw(path: str) -> None:
    """All of them side by side; of heads that differ, the first."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.8), dpi=110, layout="constrained")
    for number, (title, said) in enumerate(PATTERNS.items(), 1):
        axes = figure.add_subplot(2, 4, number)
        axes.imshow(seen(read_pattern(said, LENGTH), LENGTH)[0], cmap="Blues", vmin=0, vmax=1.2)
        axes.set_title(title, fontsize=10)
        axes.set_xticks([])
        axes.set_yticks([])
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    draw(sys.argv[1]) if sys.argv[-1].endswith(".png") else show()
