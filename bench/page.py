"""All benchmarks, one after the other, as one page.

    python bench/page.py [--rounds N] [--quick] [--json] [--only train --only decode] [--out bench/RESULTS.md]

Each runs in a process of its own. The page says what was done, how fast regard was, how fast each peer, what
the machine would allow, and the ratios with their spread; where, with what, and when. It is printed and
written to `--out`; `--json` prints the figures instead.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from common import BUSY, LIMIT, machine

HERE = Path(__file__).parent
BENCHES = ("train", "decode", "draft", "length", "context", "slide", "span")
PACKAGES = ("torch", "transformers", "x-transformers", "ctranslate2", "joeynmt")
PACKAGES += ("local-attention", "reformer-pytorch")


def run(name: str, rounds: int | None, quick: bool, threads: int) -> dict[str, Any]:
    """The figures of one benchmark."""
    command = [sys.executable, str(HERE / f"{name}.py"), "--json", "--threads", str(threads)]
    command += ["--rounds", str(rounds)] if rounds else []
    done = subprocess.run(command + ["--quick"] * quick, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return found


def rate(value: float) -> str:
    """A number with as many digits as are worth reading."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def races(found: dict[str, Any]) -> list[str]:
    """A table for what several libraries did: a row a library, by its best variant."""
    lines = []
    for case in found.get("cases", []):
        lines += [f"### {case['case']}", "", f"| | {case['unit']} | spread | regard is | spread |"]
        lines += ["|---|---|---|---|---|"]
        for library, name in case["best"].items():
            mine, ratio = case["rates"][name], case["regard_over"].get(library)
            spread = f"{rate(mine['min'])} - {rate(mine['max'])}"
            ratio = case["of_limit"] if name == LIMIT else ratio
            times = f"{ratio['median']:.2f}x | {ratio['min']:.2f} - {ratio['max']:.2f}" if ratio else "|"
            lines.append(f"| {name} | {rate(mine['median'])} | {spread} | {times} |")
        lines += missing(case["absent"]) + busy(case["foreign_cores"]) + [""]
    return lines


def growths(found: dict[str, Any]) -> list[str]:
    """A table of bench/length.py: milliseconds by length, growth, and how much faster than dense and peer."""
    if "growth" not in found:
        return []
    lengths = [one["length"] for one in next(iter(found["rows"].values()))]
    heads = [f"{n:,}" for n in lengths] + ["growth: time", "memory", "x dense", "x peer", "memory of peer"]
    lines = [
        "### forward + backward by length, ms",
        "",
        "| | " + " | ".join(heads) + " |",
        "|---" * (len(heads) + 1) + "|",
    ]
    for name, row in found["rows"].items():
        growth, against = found["growth"][name], found["at_longest"].get(name, {})
        cells = [f"{one['ms']:,.0f}" for one in row] + [_two(growth["time"]), _two(growth["memory"])]
        keys = ("faster_than_dense", "faster_than_peer", "memory_of_peer")
        lines.append("| " + " | ".join([name, *cells, *(_two(against.get(key)) for key in keys)]) + " |")
    lines += [f"- {name} was not measured: {why}" for name, why in found["absent"].items()]
    return lines + busy(found["foreign_cores"]) + [""]


def contexts(found: dict[str, Any]) -> list[str]:
    """A table of bench/context.py."""
    if "longest_over_shortest" not in found:
        return []
    lengths = [one["length"] for one in next(iter(found["rows"].values()))]
    lines = ["### one token after a text, ms", "", "| | " + " | ".join(f"{n:,}" for n in lengths)]
    lines = [*lines[:2], lines[2] + " | last / first | bytes |", "|---" * (len(lengths) + 3) + "|"]
    for name, row in found["rows"].items():
        exact = "as the formula" if all(one["bytes"] == one["formula"] for one in row) else "other"
        cells = [f"{one['ms']:.2f}" for one in row]
        lines.append(
            "| " + " | ".join([name, *cells, _two(found["longest_over_shortest"][name]), exact]) + " |"
        )
    return lines + busy(found["foreign_cores"]) + [""]


def spans(found: dict[str, Any]) -> list[str]:
    """A table of bench/span.py."""
    if found["bench"] != "span":
        return []
    lines = [
        "### adaptive span, forward + backward",
        "",
        "| | ms | mean span | shorter | faster | short of | seen | short of |",
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for row in found["rows"]:
        cells = [row["row"], f"{row['ms']:,.0f}", f"{row['mean_span']:,.0f}"]
        cells += [f"{row[key]:.2f}x" for key in ("shorter", "faster", "short_of")]
        cells += [f"{row['seen']:,.0f}", f"{row['short_of_seen']:.2f}x"]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def missing(absent: dict[str, str]) -> list[str]:
    """A line for each reason why some did not take part."""
    names: dict[str, list[str]] = {}
    for name, why in absent.items():
        names.setdefault(why, []).append(name)
    return [line for why, who in names.items() for line in ("", f"Not measured ({why}): {'; '.join(who)}.")]


def busy(foreign: float) -> list[str]:
    """A line, if other programs were at work."""
    if foreign <= BUSY:
        return []
    return ["", f"Other programs took {foreign:.2f} cores meanwhile: trust ratios more than rates."]


def _two(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def page(all_found: list[dict[str, Any]], threads: int) -> str:
    """Everything, in Markdown."""
    facts = machine(threads)
    installed = []
    for package in PACKAGES:
        try:
            installed.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    lines = ["# How fast it is", "", "Made by `make bench` on " + when + "."]
    lines += [f"{facts['cores']} cores, {threads} threads, {facts['processor']}; Python {facts['python']};"]
    lines += [", ".join(installed) + ".", ""]
    lines += ["Contenders take turns; rates are medians over rounds, ratios are made within rounds."]
    for found in all_found:
        lines += ["", f"## {found['bench']}", ""]
        if "peaks" in found:
            top = found["peaks"]
            lines += [
                f"Large products: {top['fp32'] / 1e9:,.0f} GFLOP/s in fp32, "
                f"{top['bf16'] / 1e9:,.0f} in bf16; memory is read at {top['read'] / 1e9:,.0f} GB/s.",
                "",
            ]
        lines += races(found) + growths(found) + contexts(found) + spans(found)
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Run them all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--rounds", type=int, help="turns of each contender; each benchmark's own if not given"
    )
    parser.add_argument("--quick", action="store_true", help="smaller work, to see that it runs")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the page")
    parser.add_argument("--threads", type=int, default=2, help="threads of every contender (2)")
    parser.add_argument("--only", action="append", choices=BENCHES, help="these benchmarks only")
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md", help="where the page is written")
    options = parser.parse_args()
    found = []
    for name in options.only or BENCHES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            found.append(run(name, options.rounds, options.quick, options.threads))
        except subprocess.CalledProcessError as problem:  # the others are worth their page
            print(f"bench/{name}.py failed with code {problem.returncode}: left out", file=sys.stderr)
        text = page(found, options.threads)
        if not options.quick:  # after each: who is stopped half-way keeps what was measured
            options.out.write_text(text, encoding="utf-8")
    print(json.dumps(found, indent=1) if options.json else text)


if __name__ == "__main__":
    main()
