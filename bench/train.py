"""Training steps of the same GPT in several libraries: forward, loss, backward, clip, AdamW.

    python bench/train.py [--rounds 5] [--quick] [--json] [--bf16]

small   4 layers x 128, length 64, batch 12 (nanoGPT's recipe for processors)
medium  6 layers x 384, length 256, batch 16

Everyone gets the same batches, no dropout, tied embeddings and torch's fused AdamW.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from common import Case, Run, arguments, report
from peers import TorchGpt, hf_gpt, regard_gpt, x_gpt
from torch import Tensor, nn

SMALL = {"vocab": 65, "width": 128, "heads": 4, "layers": 4, "length": 64}
MEDIUM = {"vocab": 65, "width": 384, "heads": 6, "layers": 6, "length": 256}

Loss = Callable[[Tensor, Tensor], Tensor]


def steps(model: nn.Module, loss: Loss, ids_BL: Tensor, count: int, bf16: bool) -> Run:
    """`count` whole steps on random batches."""
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=True
    )
    parameters = list(model.parameters())
    x_BL, y_BL = ids_BL[:, :-1].contiguous(), ids_BL[:, 1:].contiguous()

    def run() -> None:
        for _ in range(count):
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                value = loss(x_BL, y_BL)
            value.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return run


def case(name: str, sizes: dict[str, int], batch: int, count: int, bf16: bool) -> Case:
    """The same step, five times."""
    random = torch.Generator().manual_seed(0)
    ids_BL = torch.randint(sizes["vocab"], (batch, sizes["length"] + 1), generator=random)
    work = batch * sizes["length"]

    def plain(model: nn.Module, logits: Callable[[Any], Tensor]) -> Run:
        def loss(x_BL: Tensor, y_BL: Tensor) -> Tensor:
            return F.cross_entropy(logits(model(x_BL)).flatten(0, 1), y_BL.flatten())

        return steps(model, loss, ids_BL, count, bf16)

    def ours() -> Run:
        model = regard_gpt(**sizes)

        def loss(x_BL: Tensor, y_BL: Tensor) -> Tensor:
            value: Tensor = model.head.loss(model.states(x_BL), y_BL) / work
            return value

        return steps(model, loss, ids_BL, count, bf16)

    contenders = {
        "regard": ours,
        "transformers": lambda: plain(hf_gpt(**sizes), lambda out: out.logits),
        "x-transformers": lambda: plain(x_gpt(**sizes), lambda out: out),
        "torch.nn.TransformerEncoder": lambda: plain(TorchGpt(**sizes), lambda out: out),
    }
    precision = "bf16" if bf16 else "fp32"
    shape = f"{sizes['layers']} x {sizes['width']}, length {sizes['length']}, batch {batch}"
    return Case(f"training, {name}: {shape}, {precision}", "tokens/s", count * work, contenders)


def main() -> None:
    """Run all cases."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--bf16", action="store_true", help="also with bf16 autocast")

    options = arguments(__doc__ or "", 5, add)
    cases = []
    for bf16 in (False, True) if options.bf16 else (False,):
        cases.append(case("small", SMALL, 12, 2 if options.quick else 20, bf16))
        cases.append(case("medium", MEDIUM, 16, 1, bf16))
    report("train", options, cases)


if __name__ == "__main__":
    main()
