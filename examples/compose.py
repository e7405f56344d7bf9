"""Build a Transformer that no paper describes, from parts: window and global attention by turns of the head.

python examples/compose.py
"""

from __future__ import annotations

import torch

import regard
from regard.cost import cost, table
from regard.model import Decoder
from regard.nn.block import Serial
from regard.nn.embed import Tokens
from regard.nn.ffn import Gated
from regard.nn.head import Linear
from regard.nn.mixer import Attention
from regard.nn.norm import Rms
from regard.nn.pattern import Causal, PerHead, Window
from regard.nn.position import Rotary
from regard.nn.stack import Sequential
from regard.spec import of


def main() -> None:
    """A recipe is a value: print it, write it to a file, change it, count it, build it."""
    pattern = of(PerHead, patterns=[of(Causal), of(Window, width=8)])
    attention = of(Attention, pattern=pattern, groups=2, bias=False)
    block = of(Serial, sublayers={"self": attention, "ffn": of(Gated)}, norm=of(Rms))
    recipe = of(
        Decoder,
        dims={"width": 64, "heads": 4, "layers": 2, "length": 128},
        embed=of(Tokens, vocab=100),
        stack=of(Sequential, block=block, position=of(Rotary)),
        head=of(Linear, vocab=100),
    )
    assert regard.read(regard.Model, regard.write(recipe)) == recipe
    print(table(cost(recipe, name="compose", precision="fp32")))
    model = regard.build(recipe, seed=0).eval()
    ids = torch.randint(0, 100, (1, 32))
    tape: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        model(ids, tape=tape)
    weights_HLM = tape["decoder/0/self"][0]
    seen = (weights_HLM[:, -1] > 0).sum(-1).tolist()
    print(f"keys that the last token sees, head by head: {seen}")


if __name__ == "__main__":
    main()
