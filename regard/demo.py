"""The main job on an embedded default: read dates in many languages, from nothing, in minutes.

The settings are those of recipes/dates.yaml; they stand here so that the demo runs from an installed package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.errors import UsageError
from regard.launch import evaluate, train
from regard.loaded import Loaded, load
from regard.look.draw import fill, picture, text_map, wide

# recipes/dates.yaml, kept equal by a test
RUN: dict[str, Any] = {
    "model": {
        "system": "vanilla",
        "dims": {"width": 64, "heads": 4, "layers": 2, "length": 64},
        "hidden": 256,
        "order": "pre",
        "dropout": 0.0,
    },
    "task": {"kind": "dates"},
    "train": {
        "steps": 1500,
        "size": 64,
        "lr": 2e-3,
        "schedule": {"kind": "cosine", "warmup": 100},
        "evaluate_every": 500,
        "save_every": 500,
    },
}
ASKED = (
    "3 March 2021",
    "mercredi 3 mars 2021",
    "12. Oktober 1998",
    "lunes 4 de julio de 1977",
    "2018. november 23., p\u00e9ntek",
    "6 \u03a6\u03b5\u03b2\u03c1\u03bf\u03c5\u03b1\u03c1\u03af\u03bf\u03c5 1941",
    "2044\u5e745\u67086\u65e5",
)
SHOWN = "12 October 1998"


def demo(out: Path, seed: int = 0) -> None:
    """Train (or go on training), measure on dates never seen, show answers and where the model looked."""
    done = (out / "summary.json").is_file()
    print('demo: dates as people write them in many languages, "mercredi 3 mars 2021" -> "2021-03-03"')
    if done:
        print(f"{out} holds a trained model already; remove the folder, or give --out, to train anew")
    else:
        going_on = (out / "config.yaml").is_file()
        summary = train(RUN, [f"train.seed={seed}"], out, resume=going_on)
        print(f"trained {summary.parameters:,} parameters in {summary.seconds:.0f} s, {summary.step:,} steps")
    figures = evaluate(out, "test")
    print(f"exact on dates never seen in training: {100 * figures['exact']:.1f} %\n")
    loaded = load(out)
    columns = max(map(wide, ASKED))
    for text, answer in zip(ASKED, loaded.predict(list(ASKED)), strict=True):
        print(f"  {fill(text, columns)}  ->  {answer}")
    drawn, path = alignment(loaded, SHOWN, out / "alignment.png")
    print(f"\nwhere the model looked while it wrote (rows: written, columns: read)\n\n{drawn}\n")
    print(f"picture   {path}")
    print(f'try it    regard predict {out} "Friday, 13 November 2026"')
    print(f"measure   regard evaluate {out}")


def alignment(loaded: Loaded, text: str, path: Path) -> tuple[str, Path]:
    """The cross-attention over one input and the model's own answer, as text and as a PNG file."""
    from regard.decode import align
    from regard.tasks.transduce import Transduce

    task, model = loaded.task, loaded.model
    if not isinstance(task, Transduce):
        raise UsageError("an alignment needs a task that turns one sequence into another.")
    answer = loaded.predict(text)
    source, target = (task.tokens.encode(task.clean(t)) for t in (text, answer))
    weights_LM = align(model, [*source, task.eos], [*target, task.eos], [task.bos])[:-1, :-1].numpy()
    rows, columns = ([task.tokens.decode([one]) for one in ids] for ids in (target, source))
    title = f"{text}  ->  {answer}"
    return text_map(weights_LM, rows, columns), picture(weights_LM, rows, columns, path, title)
