"""Which law is claimed of whom, tried one by one, and written down with the figures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from regard.laws import attention, models, writers
from regard.laws.asking import LENGTH, PADS
from regard.laws.attention import GROUPS, PATTERNS, SPARSE
from regard.laws.subjects import (
    DIMS,
    FAMILIES,
    NUMBERS,
    example,
    hosts,
    lively,
    parts,
    positions,
    systems,
    together,
    writes,
)
from regard.model import Decoder, EncoderDecoder, Model
from regard.nn.pattern import Pattern, Prefix
from regard.nn.position import Position
from regard.nn.score import Score
from regard.nn.stack import Stack
from regard.spec import Recipe, kind_of, kinds, of
from regard.systems import SYSTEMS
from regard.systems import recipe as system

EXACT, PART, WHOLE = 0.0, 1e-5, 1e-4
Cases = Iterator[tuple[str, float]]


@dataclass(frozen=True)
class Row:
    """What came of one claim: the largest difference of all its cases, and where; or what went wrong."""

    law: str
    subject: str
    difference: float
    bound: float
    ok: bool
    cases: int
    worst: str


@dataclass(frozen=True)
class Claim:
    """One law, one subject, and the cases to try: each yields its name and a difference."""

    law: str
    subject: str
    bound: float
    cases: Callable[[], Cases]

    def row(self) -> Row:
        """Try every case. What goes wrong in one claim does not stop the others."""
        count, difference, worst = 0, 0.0, ""
        try:
            for name, found in self.cases():
                count += 1
                if not found <= difference:
                    difference, worst = found, name
        except Exception as error:
            difference, worst = float("inf"), f"{type(error).__name__}: {error}"
        ok = count > 0 and difference <= self.bound
        return Row(self.law, self.subject, difference, self.bound, ok, count, worst)


@dataclass(frozen=True)
class Law:
    """A law of models: the function that says it, and the choices of its arguments to try it with.

    Options:
      name: the heading of its column
      check: the law
      bound: the largest difference that is allowed
      takes: "model" or "recipe"
      choices: arguments, each tried
      writes: only for models that write token by token
      systems_only: not for single parts
    """

    name: str
    check: Callable[..., float]
    bound: float
    takes: str = "model"
    choices: tuple[tuple[Any, ...], ...] = ((),)
    writes: bool = False
    systems_only: bool = False


CACHES = ((False,), (True,))  # growing, static
RAGGED = ((False, 0, "left"), (True, 0, "plain"))
STEPS = ((False, 1, 0, "left"), (False, 7, 0, "plain"), (True, 1, 0, "plain"), (True, 7, 0, "left"))
LAWS = (
    Law("learns", models.gradients_arrive, EXACT),
    Law("written", models.round_trip, EXACT, takes="recipe"),
    Law("seeded", models.born_from_seed, EXACT, takes="recipe"),
    Law("saved", models.saved_exactly, EXACT),
    Law("ways", models.ways_agree_in, WHOLE),
    Law("padding", models.padding_is_blind, WHOLE, choices=tuple((p,) for p in PADS[1:])),
    Law("future", writers.future_is_blind, EXACT, writes=True),
    Law("stepwise", writers.decode_equals_forward, WHOLE, choices=STEPS, writes=True),
    Law("beams", writers.beams_equal_forward, WHOLE, choices=RAGGED, writes=True),
    Law("rollback", writers.rollback_equals_forward, WHOLE, choices=RAGGED, writes=True),
    Law("bytes", writers.cache_is_counted, EXACT, choices=CACHES, writes=True),
    Law("loss falls", models.loss_falls, 0.8, takes="recipe", systems_only=True),
)


def claims() -> list[Claim]:
    """Every claim: laws of models for each system and each part, laws of attention for each position."""
    found: list[Claim] = []
    for name, members in systems().items():
        found += _claims(name, members, LAWS)
    for part in parts():
        family = next((c.__name__.lower() for c in part.__mro__ if c in FAMILIES), "part")
        found += _claims(
            f"{family} {kind_of(part)}", hosts(part), [law for law in LAWS if not law.systems_only]
        )
    for name, position in positions().items():
        found.append(Claim("kernels", name, PART, partial(_kernels, position)))
        if position is None or (_says(position, "biased") and not _says(position, "valued")):
            found.append(Claim("flex", name, PART, partial(_flex, position)))
        if "=" not in name:  # variants step through every cache as parts
            found.append(Claim("decoding", name, WHOLE, partial(_decoding, position)))
            found.append(Claim("together", name, WHOLE, partial(_together, position)))
    return found


def _says(position: Recipe[Position], what: str) -> bool:
    return bool(getattr(position.make, what, False))


def prove(names: Iterable[str] = ()) -> list[Row]:
    """Try every claim, or those whose law or subject has one of these names."""
    wanted = [name.lower() for name in names]
    chosen = (c for c in claims() if not wanted or any(n in f"{c.law} {c.subject}" for n in wanted))
    return [claim.row() for claim in chosen]


def _claims(subject: str, members: dict[str, Recipe[Model]], laws: Iterable[Law]) -> Iterator[Claim]:
    few = {c: r for c, r in members.items() if not c.startswith("activation=")}  # no bend moves a token
    writers = {c: r for c, r in few.items() if r.make in (Decoder, EncoderDecoder)}
    for law in laws:
        if some := writers if law.writes else members:
            yield Claim(law.name, subject, law.bound, partial(_tries, law, some))


def _tries(law: Law, members: dict[str, Recipe[Model]]) -> Cases:
    for change, recipe in members.items():
        subject = recipe if law.takes == "recipe" else lively(recipe)
        if law.writes and isinstance(subject, Model) and not writes(subject):
            continue
        for choice in law.choices:
            yield ", ".join([change or "as it is", *map(str, choice)]), law.check(subject, *choice)


def _kernels(position: Recipe[Position] | None) -> Cases:
    """Every pattern x {MHA, GQA, MQA} x padding: explicit == fused == blockwise, gradients included."""
    for (p, pattern), (g, groups), pads in product(PATTERNS.items(), GROUPS.items(), PADS):
        yield f"{p}, {g}, {pads}", attention.ways_agree(position, pattern, groups, pads)
    for p, pattern in SPARSE.items():
        for g, pads in (("MHA", "plain"), ("GQA", "left"), ("MQA", "middle")):
            yield f"{p}, {g}, {pads}", attention.ways_agree(position, pattern, GROUPS[g], pads)
    for pads in PADS:
        yield f"prefix by row, {pads}", attention.ways_agree(position, of(Prefix), 2, pads, (6, 0, 3))


def _flex(position: Recipe[Position] | None) -> Cases:
    """FlexAttention without a GPU gives what explicit gives: all patterns, two of them with a bias."""
    some = {p: SPARSE[p] for p in ("strided", "fixed", "local_2d")}
    chosen = PATTERNS | some if position is None else {p: PATTERNS[p] for p in ("window", "per_head")}
    for p, pattern in chosen.items():
        yield p, attention.flex_agrees(position, pattern, 2, "left")
    yield "prefix by row", attention.flex_agrees(position, of(Prefix), 2, "left", (6, 0, 3))


def _decoding(position: Recipe[Position] | None) -> Cases:
    """{causal, window, prefix} x {MHA, GQA, MQA} x {growing, static cache}, ragged: fed by 1, 3, 7 tokens and
    at once, with beams reordered, with tokens taken back, it answers as in one pass."""
    seen: dict[str, Recipe[Pattern]] = {n: PATTERNS[n] for n in ("causal", "window", "prefix")}
    for (p, pattern), (g, groups) in product(seen.items(), GROUPS.items()):
        options: dict[str, Any] = {**DIMS, "vocab": NUMBERS["vocab"]}
        options |= {"position": position, "pattern": pattern, "groups": groups}
        model, first = lively(system("gpt", **options)), 13 if p == "prefix" else 0
        for static in (False, True):
            case = f"{p}, {g}, {'static' if static else 'growing'}"
            for chunk in (1, 3, 7, LENGTH):
                yield f"{case}, by {chunk}", writers.decode_equals_forward(model, static, chunk, first)
            yield f"{case}, plain", writers.decode_equals_forward(model, static, 3, first, "plain")
            yield f"{case}, beams", writers.beams_equal_forward(model, static, first)
            yield f"{case}, rollback", writers.rollback_equals_forward(model, static, first)


def _together(position: Recipe[Position] | None) -> Cases:
    """Every pattern that writes x every score x {MHA, GQA} x {growing, static cache}, and every stack: fed by
    3 tokens, ragged, it answers as in one pass. What `regard parts --matrix` refuses is left out."""
    from regard.matrix import row

    works = {(c.family, c.name) for c in row("", position) if c.works == "write"}
    patterns = {p: r for p, r in (PATTERNS | SPARSE).items() if ("pattern", p) in works}
    scores = {s: example(c) for s, c in kinds(Score).items() if ("score", s) in works}
    for (p, pattern), (s, score), g in product(patterns.items(), scores.items(), ("MHA", "GQA")):
        model = lively(together(position, pattern, score, GROUPS[g]))
        first = 13 if isinstance(model, Decoder) and model.prefixed else 0  # a prefix is fed at once
        for static in (False, True):
            case = f"{p}, {s}, {g}, {'static' if static else 'growing'}"
            yield case, writers.decode_equals_forward(model, static, 3, first)
    for name, stack in kinds(Stack).items():
        if ("stack", name) in works:
            model = lively(together(position, stack=stack))
            yield f"{name}, growing", writers.decode_equals_forward(model, False, 3)
            yield f"{name}, static", writers.decode_equals_forward(model, True, 3)


GRIDS = {"kernels": _kernels, "flex": _flex, "decoding": _decoding, "together": _together}
MEANING = {law.name: law.check for law in LAWS} | GRIDS


def table(rows: Iterable[Row]) -> str:
    """Markdown: systems, parts and positions, a line each, a column for each law; then what the laws say."""
    rows = list(rows)
    broken = [row for row in rows if not row.ok]
    lines = [
        "# Proofs",
        "",
        "Written by `regard prove --out docs/PROOFS.md`; do not edit. A figure is the largest difference,",
        "in float32, with large random weights and ragged batches; 0 is equality to the last bit, - that the",
        f"law does not apply. {len(rows)} claims, {sum(r.cases for r in rows)} cases, {len(broken)} broken.",
    ]
    groups: dict[str, list[Row]] = {"Systems": [], "Parts, each in a small model": [], "Attention": []}
    for row in rows:
        groups[list(groups)[2 if row.law in GRIDS else 0 if row.subject in SYSTEMS else 1]].append(row)
    for title, chosen in groups.items():
        lines += _pivot(title, chosen) if chosen else []
    lines += ["", "## What the laws say", ""]
    for law, bound in {row.law: row.bound for row in rows}.items():
        words = (inspect.getdoc(MEANING[law]) or "").split("\n\n")[0].replace("\n", " ")
        lines.append(f"- **{law}**, at most {bound:g}: {words}")
    lines += [f"\n**Broken**: {r.law}, {r.subject}: {r.difference:.2g} ({r.worst})" for r in broken]
    return "\n".join(lines) + "\n"


def _pivot(title: str, rows: list[Row]) -> list[str]:
    laws = list(dict.fromkeys(row.law for row in rows))
    cells = {(row.subject, row.law): _figure(row) for row in rows}
    lines = ["", f"## {title}", "", f"| | {' | '.join(laws)} |", "|---" * (len(laws) + 1) + "|"]
    for subject in dict.fromkeys(row.subject for row in rows):
        figures = [cells.get((subject, law), "-") for law in laws]
        lines.append(f"| {subject} | {' | '.join(figures)} |")
    return lines


def _figure(row: Row) -> str:
    figure = f"{row.difference:.0e}" if 0 < row.difference < 0.01 else f"{row.difference:.2g}"
    return figure if row.ok else f"**{figure}**"
