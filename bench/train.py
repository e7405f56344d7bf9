"""Training steps of the same GPT in several libraries: forward, loss, backward, clip, AdamW.

    python bench/train.py [--rounds 5] [--quick] [--json] [--plain]

small       4 layers x 128, length 64, batch 12 (nanoGPT's recipe for processors)
medium      6 layers x 384, length 256, batch 16
translator  4 + 4 layers x 128, batches out of 29,000 pairs as long as Multi30k's, sorted by length; labels
            sharp, and smoothed

Everyone gets the same batches, no dropout, tied embeddings and torch's fused AdamW, in fp32 and with bf16
autocast, as it is and compiled; a library is judged by its best. regard keeps what it frees (see
regard/heap.py), as its trainer does. JoeyNMT brings a trainer: its own step, loss and AdamW, in fp32,
which is all that it has on a processor, and its own batches of the same pairs, which it cannot sort. Batches
are made before the clock starts. The limit is that of large products in the same round, in bf16, or in fp32
where the processor knows no bf16, by nanoGPT's count: 6 weights + 12 layers x width x length operations a
token.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from common import LIMIT, Case, Run, arguments, peaks, products, report
from peers import TorchGpt, hf_gpt, hf_marian, joey, regard_gpt, regard_translator, x_gpt
from torch import Tensor, nn

from regard.data.batch import buckets, pad
from regard.heap import keep_memory
from regard.nn.context import places
from regard.nn.head import CrossEntropy
from regard.train.precision import compile_model

SMALL = {"vocab": 65, "width": 128, "heads": 4, "layers": 4, "length": 64}
MEDIUM = {"vocab": 65, "width": 384, "heads": 6, "layers": 6, "length": 256}
TINY = {"vocab": 10000, "width": 128, "heads": 4, "layers": 4, "hidden": 256, "length": 256}
PAIRS, ALIKE = 29_000, 0.87  # of Multi30k: how many, and how much the lengths of the two sides go together

Loss = Callable[[Tensor, Tensor], Tensor]
Contender = Callable[[bool, bool], Run]  # bf16 or not, compiled or not


VARIANTS = {"": (False, False), ", bf16": (True, False), ", compiled": (False, True)}
VARIANTS[", bf16, compiled"] = True, True


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


def case(name: str, sizes: dict[str, int], batch: int, count: int, plain: bool) -> Case:
    """The same step, by everybody, in all variants."""
    random = torch.Generator().manual_seed(0)
    ids_BL = torch.randint(sizes["vocab"], (batch, sizes["length"] + 1), generator=random)
    work = batch * sizes["length"]

    def peer(make: Callable[..., nn.Module], logits: Callable[[Any], Tensor]) -> Contender:
        def start(bf16: bool, compiled: bool) -> Run:
            model = make(**sizes)
            called = torch.compile(model) if compiled else model

            def loss(x_BL: Tensor, y_BL: Tensor) -> Tensor:
                return F.cross_entropy(logits(called(x_BL)).flatten(0, 1), y_BL.flatten())

            return steps(model, loss, ids_BL, count, bf16)

        return start

    def ours(bf16: bool, compiled: bool) -> Run:
        keep_memory()  # as regard's trainer does
        model = regard_gpt(**sizes)
        if compiled:
            compile_model(model)

        def loss(x_BL: Tensor, y_BL: Tensor) -> Tensor:
            value: Tensor = model.head.loss(model.states(x_BL), y_BL) / work
            return value

        return steps(model, loss, ids_BL, count, bf16)

    libraries: dict[str, Contender] = {
        "regard": ours,
        "transformers": peer(hf_gpt, lambda out: out.logits),
        "x-transformers": peer(x_gpt, lambda out: out),
        "torch.nn": peer(TorchGpt, lambda out: out),
    }
    contenders = {
        f"{library}{variant}": partial(start, *how)
        for library, start in libraries.items()
        for variant, how in VARIANTS.items()
        if not (plain and variant)
    }
    weights = 12 * sizes["layers"] * sizes["width"] ** 2 + sizes["vocab"] * sizes["width"]
    a_token = 6 * weights + 12 * sizes["layers"] * sizes["width"] * sizes["length"]
    contenders[LIMIT] = products(count * work * a_token)
    shape = f"{sizes['layers']} x {sizes['width']}, length {sizes['length']}, batch {batch}"
    return Case(f"training, {name}: {shape}", "tokens/s", count * work, contenders)


def translator(count: int, plain: bool, smoothing: float) -> Case:
    """4 + 4 layers x 128 on batches of 4,096 tokens, source and target together, out of 29,000 pairs.

    Those have the lengths of Multi30k's, so that sorting leaves as little padding as there. JoeyNMT counts
    the longer side only: half as many are about the same for it.
    """
    random = np.random.default_rng(0)
    both = random.multivariate_normal((14, 14), 4.5**2 * np.array([[1, ALIKE], [ALIKE, 1]]), PAIRS)
    lengths = both.round().clip(4, 40).astype(np.int64)
    work, batches, rows = 0, [], []
    for numbers in buckets(lengths, 4096, 0, 0)[:count]:
        pairs = [[random.integers(3, TINY["vocab"] - 2, n) for n in lengths[number]] for number in numbers]
        source_BM, target_BL = (pad([pair[side] for pair in pairs]) for side in (0, 1))
        given_BL = torch.cat([torch.full((len(numbers), 1), 2), target_BL[:, :-1]], 1)
        batches.append((source_BM, given_BL, target_BL))
        work, rows = work + int(lengths[numbers, 1].sum()), rows + pairs

    def trained(model: nn.Module, loss: Callable[..., Tensor], bf16: bool) -> Run:
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        parameters = list(model.parameters())

        def run() -> None:
            for batch in batches:
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    value = loss(*batch)
                value.backward()
                nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

        return run

    def ours(bf16: bool) -> Run:
        keep_memory()
        model, cost = regard_translator(**TINY), CrossEntropy(smoothing)

        def loss(source_BM: Tensor, given_BL: Tensor, target_BL: Tensor) -> Tensor:
            x_BLD = model.states(given_BL, places(given_BL), model.encode(source_BM))
            value: Tensor = model.head.loss(x_BLD, target_BL, cost) / int((target_BL >= 0).sum())
            return value

        return trained(model, loss, bf16)

    def marian(bf16: bool) -> Run:
        model = hf_marian(**TINY)
        none = TINY["vocab"] - 1

        def loss(source_BM: Tensor, given_BL: Tensor, target_BL: Tensor) -> Tensor:
            out = model(
                input_ids=source_BM.masked_fill(source_BM < 0, none),
                attention_mask=(source_BM >= 0).long(),
                decoder_input_ids=given_BL.masked_fill(given_BL < 0, none),
            )
            return F.cross_entropy(
                out.logits.flatten(0, 1), target_BL.flatten(), ignore_index=-1, label_smoothing=smoothing
            )

        return trained(model, loss, bf16)

    def joeynmt() -> Run:
        trainer, own = joey(rows, 2048, smoothing, **TINY)
        if (learned := sum(batch.ntokens for batch in own)) != work:
            raise RuntimeError(f"JoeyNMT learns {learned} target tokens and not {work}")

        def run() -> None:  # as its train_and_validate does between two lines of its log
            for batch in own:
                trainer._train_step(batch)
                trainer.clip_grad_fun(parameters=trainer.model.parameters())
                trainer.optimizer.step()
                trainer.model.zero_grad()

        return run

    contenders = {
        f"{library}{variant}": partial(start, bf16)
        for library, start in {"regard": ours, "transformers Marian": marian}.items()
        for variant, bf16 in {"": False, ", bf16": True}.items()
        if not (plain and bf16)
    }
    contenders["JoeyNMT"] = joeynmt
    name = f"training, translator: 4 + 4 x 128 (hidden 256), 10,000 words, {len(rows):,} pairs"
    name += f", labels smoothed by {smoothing}" if smoothing else ""
    return Case(name, "target tokens/s", work, contenders)


def main() -> None:
    """Run all cases."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--plain", action="store_true", help="fp32, not compiled, only")

    options = arguments(__doc__ or "", 5, add)
    small = case("small", SMALL, 12, 2 if options.quick else 20, options.plain)
    medium = case("medium", MEDIUM, 16, 1, options.plain)
    pairs = [translator(2 if options.quick else 12, options.plain, share) for share in (0.0, 0.1)]
    report("train", options, [small, medium, *pairs], peaks=peaks())


if __name__ == "__main__":
    main()
