"""The command line: thin over the Python functions; nothing heavy is imported for --help.

Every error is one sentence on stderr and an exit code that says whose turn it is (docs/cli.md).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec

import typer

P = ParamSpec("P")

EXITS = (
    "Exit codes: 0 done; 1 a check or a proof failed; 2 a config, an option or a call is wrong; 65 the data "
    "is wrong; 70 a bug in regard; 74 the disk; 75 stopped with a checkpoint saved, try again; 130 and 143 "
    "stopped by ctrl-C or SIGTERM; 141 the reader of the output went away. REGARD_TRACE=1 shows the whole "
    "traceback of any error."
)
BUG = "This is a bug in regard: please report the lines above, the command, and what `regard doctor` prints."

app = typer.Typer(
    help="The whole Transformer family: train, evaluate, use and look into any of its members.",
    epilog=EXITS,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

Recipe = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A run file (YAML, JSON or TOML) or a run folder.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Changes, such as train.steps=100 or model.dropout=0.2."),
]
RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder, or a folder with a saved model.")
]
Json = Annotated[bool, typer.Option("--json", help="Answer as JSON, for programs.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Answer as a page of documentation.")]


def main() -> None:
    """Entry point of `regard` and `python -m regard`."""
    app()


def verb(function: Callable[P, None]) -> Callable[P, None]:
    """A command whose errors become a sentence on stderr and an exit code."""

    @wraps(function)
    def guarded(*args: P.args, **options: P.kwargs) -> None:
        try:
            function(*args, **options)
            sys.stdout.flush()
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt:
            print("regard: stopped.", file=sys.stderr)
            raise typer.Exit(130) from None
        except (
            BrokenPipeError
        ):  # `regard ... | head`: nobody reads any more, and Python must not complain at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise typer.Exit(141) from None
        except Exception as error:
            code, text = explain(error)
            if os.environ.get("REGARD_TRACE") or code == 70:
                import traceback

                traceback.print_exc()
            print(f"regard: {text}", file=sys.stderr)
            raise typer.Exit(code) from None

    app.command()(guarded)
    return guarded


def explain(error: Exception) -> tuple[int, str]:
    """The exit code of an error, and the sentence to print."""
    code = getattr(error, "code", None)
    if type(error).__module__.startswith("regard.") and isinstance(code, int):
        return code, str(error)
    if isinstance(error, RuntimeError) and str(error).startswith("the first process failed"):
        return 1, "the first process failed, and has said why."  # under torchrun; this is another one
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("regard"):
        return 2, f"the Python package {error.name!r} is not installed; `regard doctor` says what is missing."
    if isinstance(error, OSError):
        return 74, f"{error.filename or 'a file'}: {error.strerror or error}."
    if isinstance(error, MemoryError) or "not enough memory" in str(error):
        return 2, "there is not enough memory for this; make train.tokens, train.size or the model smaller."
    return 70, f"{type(error).__name__}: {error}\n{BUG}"


def say(data: Any, as_json: bool, text: Callable[[], str]) -> None:
    """Print an answer: as JSON for programs, else as text for people."""
    print(json.dumps(data, indent=1, ensure_ascii=False) if as_json else text())


def version(asked: bool) -> None:
    """Print the version and stop."""
    if asked:
        from importlib.metadata import version

        print(f"regard {version('regard')}")
        raise typer.Exit


@app.callback()
def start(
    show_version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The whole Transformer family: train, evaluate, use and look into any of its members."""


@verb
def demo(
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("runs/demo-dates"),
    seed: Annotated[int, typer.Option(help="Seed of the first weights and of the data's order.")] = 0,
) -> None:
    """Learn to read dates in many languages, from nothing.

    Takes some minutes; then shows answers and the alignment.
    """
    from regard.demo import demo as show

    show(out, seed)


@verb
def systems(json: Json = False, markdown: Markdown = False) -> None:
    """List the members of the family: name, paper, file."""
    from regard import catalogue

    found = catalogue.systems()
    if markdown:
        print(catalogue.systems_page(found), end="")
    else:
        say([entry.data for entry in found], json, lambda: catalogue.table(found))


@verb
def parts(
    family: Annotated[
        str | None, typer.Argument(metavar="FAMILY", help="One family only, such as position.")
    ] = None,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Which positions and patterns work together.")
    ] = False,
    picture: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Show who sees whom: strided, or '{kind: strided, stride: 6}'."),
    ] = None,
    length: Annotated[int, typer.Option(help="Positions in the picture.", min=1, max=512)] = 32,
    out: Annotated[Path | None, typer.Option(help="Write the picture as a PNG file, too.")] = None,
    json: Json = False,
    markdown: Markdown = False,
) -> None:
    """List the parts by family: what they are, and where."""
    from regard import catalogue

    if picture is not None:
        from regard.look.pattern import draw_pattern, read_pattern, text_pattern

        pattern = read_pattern(picture, length)
        if out is not None:
            draw_pattern(pattern, out, length, picture)
        return print(text_pattern(pattern, length))

    if matrix:
        from regard import matrix as pairs

        cells = pairs.matrix()
        return say([vars(cell) for cell in cells], json, lambda: pairs.table(cells))

    found = catalogue.parts(family)
    if markdown:
        print(catalogue.parts_page(found), end="")
    else:
        say([entry.data for entry in found], json, lambda: catalogue.table(found))


@verb
def where(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A system, a part, a task or a paper's name.")],
    json: Json = False,
) -> None:
    """Say in which file a system or part is."""
    from regard import catalogue

    found = catalogue.where(name)
    say([entry.data for entry in found], json, lambda: catalogue.table(found))


@verb
def cost(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="A run file, a run folder, or the name of a system, as in `gpt`."
        ),
    ],
    overrides: Overrides = None,
    batch: Annotated[int, typer.Option(help="Sequences side by side.", min=1)] = 1,
    length: Annotated[
        int | None, typer.Option(help="Tokens of a sequence; the model's length if not given.")
    ] = None,
    precision: Annotated[
        Literal["fp32", "bf16"], typer.Option(help="Of the cache and the activations.")
    ] = "bf16",
    cache: Annotated[
        Literal["full", "int8"], typer.Option(help="Keys and values in that precision, or in bytes.")
    ] = "full",
    memory: Annotated[
        int, typer.Option(help="Tokens remembered before each segment in training.", min=0)
    ] = 0,
    json: Json = False,
) -> None:
    """Say what a model costs before it is trained.

    Parameters, FLOPs a token, bytes of the cache and of the activations.
    """
    from regard import cost as costs

    found = costs.cost_of(
        recipe, overrides or [], batch=batch, length=length, precision=precision, cache=cache, memory=memory
    )
    say(found.data, json, lambda: costs.table(found))


@verb
def train(
    recipe: Recipe,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/NAME if not given.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where the run in this folder stopped.")
    ] = False,
    allow_changed: Annotated[
        list[str] | None,
        typer.Option(help="With --resume: data, tokens or model may differ from the checkpoint's."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and say what would be done.")
    ] = False,
) -> None:
    """Train what a run file describes.

    A run that was stopped goes on with --resume, to the same bits.
    """
    from regard import launch

    if dry_run:
        print(launch.dry_run(recipe, overrides or []))
    else:
        launch.train(recipe, overrides or [], out, resume, allow_changed or ())


@verb
def evaluate(
    run: RunFolder,
    overrides: Overrides = None,
    split: Annotated[
        Literal["train", "valid", "test"], typer.Option(help="Which data to measure on.")
    ] = "test",
    limit: Annotated[int | None, typer.Option(help="Measure on this many samples only.", min=1)] = None,
    precision: Annotated[
        Literal["fp32", "bf16", "int8"] | None,
        typer.Option(help="Measure the model as `predict` has it with this option."),
    ] = None,
    json: Json = False,
) -> None:
    """Measure a trained model on a split.

    The figures are also kept in RUN/eval.
    """
    from regard import launch

    figures = launch.evaluate(run, split, limit, overrides or [], precision)
    say(figures, json, lambda: launch.figures_line(figures))


@verb
def predict(
    run: RunFolder,
    inputs: Annotated[list[str] | None, typer.Argument(metavar="INPUT", help="What to answer.")] = None,
    file: Annotated[Path | None, typer.Option(help="Read inputs from this file, one a line.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write answers to this file, one a line.")] = None,
    beam: Annotated[int | None, typer.Option(help="Beam search with this many hypotheses.", min=1)] = None,
    alpha: Annotated[float | None, typer.Option(help="Strength of beam search's length penalty.")] = None,
    patience: Annotated[
        float | None, typer.Option(help="End a beam search when this times --beam answers have ended.")
    ] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw tokens at random.")] = False,
    temperature: Annotated[float | None, typer.Option(help="Divide logits by this before drawing.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k most probable tokens only.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the fewest tokens of this total mass.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Draw only tokens this probable relative to the best.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the draws.")] = None,
    nbest: Annotated[int | None, typer.Option(help="Answers for each input (with --json).", min=1)] = None,
    length: Annotated[int | None, typer.Option(help="Most new tokens of an answer.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End an answer before this text; may be repeated.")
    ] = None,
    cache: Annotated[
        Literal["full", "int8"] | None,
        typer.Option(help="int8 keeps keys and values in a quarter of the bytes."),
    ] = None,
    precision: Annotated[
        Literal["fp32", "bf16", "int8"] | None,
        typer.Option(help="Weights laid out for quick answers on a CPU; int8 is a little less exact."),
    ] = None,
    compile: Annotated[
        bool,
        typer.Option("--compile", help="Compile the step of writing; pays from some thousand tokens on."),
    ] = False,
    draft: Annotated[
        int | None,
        typer.Option(help="Guess this many tokens ahead: the same answers, one at a time, sooner.", min=0),
    ] = None,
    truncate: Annotated[
        Literal["left", "right"] | None,
        typer.Option(help="Cut inputs that are too long at this end, and say so."),
    ] = None,
    json: Json = False,
) -> None:
    """Answer inputs: translate, continue, fill, classify.

    Whatever the task is; as many lines out as in, always.

    Inputs come from the command line, from --file, or line by line from standard input.
    """
    from regard.answer import answer

    rules = {
        "method": "sample" if sample else "beam" if beam is not None else None,
        "beam": beam, "alpha": alpha, "patience": patience, "temperature": temperature, "top_k": top_k,
        "top_p": top_p, "min_p": min_p, "seed": seed, "nbest": nbest, "length": length,
        "stop": tuple(stop) if stop else None, "cache": cache, "draft": draft,
    }  # fmt: skip
    given = {name: value for name, value in rules.items() if value is not None}
    answer(run, inputs or None, file, out, given, truncate, json, precision, compile)


@verb
def score(
    run: RunFolder,
    inputs: Annotated[Path, typer.Argument(metavar="INPUTS", help="File of inputs, one a line.")],
    outputs: Annotated[
        Path, typer.Argument(metavar="OUTPUTS", help="File of the outputs to score, one a line.")
    ],
) -> None:
    """Print log p(output | input) of each pair of lines."""
    from regard.answer import score_files

    for value in score_files(run, inputs, outputs):
        print(f"{value:.6f}")


@verb
def convert(
    run: RunFolder,
    groups: Annotated[int, typer.Option(help="Sets of keys and values that are left; 1 is MQA.", min=1)],
    out: Annotated[Path, typer.Option(help="New folder for the converted run or model.")],
) -> None:
    """Let the heads of a trained model share keys and values.

    GQA by mean pooling: a smaller cache, almost the same answers; train on a little to win them back.
    """
    from regard.convert import convert as change

    print(f"{change(run, groups, out)}: {groups} groups of keys and values")


@verb
def prove(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Only these systems or laws.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the table to this file, as docs/PROOFS.md.")] = None,
    json: Json = False,
) -> None:
    """Check every law for every part and system.

    Prints the table with its figures; exit code 1 if one does not hold.
    """
    from regard.prove import prove as check_laws

    check_laws(names or [], out, json)


@verb
def doctor(json: Json = False) -> None:
    """Say what regard runs on: versions, cores, memory."""
    from regard.machine import doctor as look

    found = look()
    say(found.data, json, found.text)


@verb
def check(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A run, a checkpoint, a model, shards or a text file.")
    ],
) -> None:
    """Verify a run, a checkpoint, a model or a corpus.

    Exit code 1 names the bad file.
    """
    from regard.check import check as verify

    for line in verify(path):
        print(line)
