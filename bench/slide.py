"""Evaluation that goes on by a cache, against a window that is read anew for every token.

    python bench/slide.py [--rounds 3] [--quick] [--json]

Transformer-XL, 4 layers x 128, evaluates 512 tokens that each see 256: segment by segment with a memory, and
token by token, against a window of 256 moved on by one token for each of them, 16 windows at a time. Dai et
al. 2019, section 4.6, found 363 times the speed at a context of 800 tokens, 1874 at 3800: .45 to .49 times
the context.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from common import Case, Run, arguments, machine, race, show

import regard
from regard.model import Decoder
from regard.nn.pattern import Window
from regard.spec import Recipe, of

CONTEXT, SEGMENT, BESIDE = 256, 128, 16


def built(recipe: Recipe[Any]) -> Decoder:
    """The model, in the process that runs it."""
    model = regard.build(recipe).eval()
    assert isinstance(model, Decoder)
    return model


def sliding(tokens: int) -> Case:
    """`tokens` tokens, each with the 255 before it."""
    sizes = {"vocab": 64, "width": 128, "heads": 4, "layers": 4, "length": CONTEXT}
    recipe = regard.system("transformer_xl", **sizes, pattern=of(Window, width=CONTEXT))
    ids_L = torch.randint(64, (CONTEXT + tokens,), generator=torch.Generator().manual_seed(0))

    def on(step: int) -> Run:
        model = built(recipe)

        @torch.inference_mode()
        def run() -> None:
            memory = model.recent(1, CONTEXT)
            model.states(ids_L[None, :CONTEXT], cache=memory)
            for at in range(CONTEXT, CONTEXT + tokens, step):
                model(ids_L[None, at : at + step], cache=memory)

        return run

    def anew() -> Run:
        model = built(recipe)

        @torch.inference_mode()
        def run() -> None:
            windows_NL = ids_L.unfold(0, CONTEXT, 1)[1:]
            for at in range(0, tokens, BESIDE):
                model.head(model.states(windows_NL[at : at + BESIDE])[:, -1:])

        return run

    contenders = {"regard": lambda: on(SEGMENT), "token by token": lambda: on(1), "sliding": anew}
    name = f"evaluation of {tokens} tokens in a context of {CONTEXT}, in segments of {SEGMENT}"
    return Case(name, "tokens/s", tokens, contenders)


def main() -> None:
    """The race, and how many times the context it is won by."""
    options = arguments(__doc__ or "", 3)
    result = race(sliding(64 if options.quick else 512), options.rounds)
    faster = result.summary()["regard_over"]["sliding"]["median"]
    if options.json:
        found = {"cases": [result.summary()], "faster": faster, "by_context": faster / CONTEXT}
        print(json.dumps({"bench": "slide", "machine": machine(options.threads), **found}, indent=1))
        return
    show(result)
    print(f"  {faster:.0f} times as fast as sliding: {faster / CONTEXT:.2f} x context (bar: 0.25 x context)")


if __name__ == "__main__":
    main()
