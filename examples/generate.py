"""Train a small character model on a text in memory, then let it go on, token by token over a cache.

python examples/generate.py
"""

from __future__ import annotations

import torch

import regard
from regard.data.tokens import Chars
from regard.decode import Rules, generate

TEXT = "she sells sea shells by the sea shore. " * 20


def main() -> None:
    """A loop as plain as it gets: the model is an ordinary nn.Module."""
    tokens = Chars()
    tokens.fit([TEXT], [])
    recipe = regard.system("llama", vocab=tokens.vocab, width=32, heads=4, layers=2, length=64)
    model = regard.build(recipe, seed=0)
    stream = torch.tensor(tokens.encode(TEXT))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(0)
    for step in range(60):
        starts = torch.randint(0, len(stream) - 33, (16,))
        window = torch.stack([stream[s : s + 33] for s in starts])
        x = model.states(window[:, :-1])  # type: ignore[operator]
        loss = model.head.loss(x, window[:, 1:]) / window[:, 1:].numel()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:3d}   loss {loss.item():.3f}")
    [[answer]] = generate(
        model.eval(), [tokens.encode("she sells")], None, Rules(length=30), eos=None, decode=tokens.decode
    )
    print("she sells" + (answer.text or ""))


if __name__ == "__main__":
    main()
