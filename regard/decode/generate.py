"""Answers to any number of prompts: sorted, batched, written, and put back in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from regard.decode.beam import Beams, penalty, searched
from regard.decode.engine import Session, at_rest, check, room
from regard.decode.greedy import Row, walk
from regard.decode.rules import Hypothesis, Rules
from regard.decode.sample import key
from regard.decode.speculate import leap
from regard.decode.text import Decode, Text
from regard.decode.workers import Waiting, side_by_side, workers
from regard.errors import UsageError
from regard.model import Decoder, EncoderDecoder, Model

Ids = Sequence[int]
Progress = Callable[[int, int], None]
LEAST, HELD = 2**14, 2**28  # tokens side by side at least; bytes that more of them may take


def generate(
    model: Model,
    prompts: Sequence[Ids],
    sources: Sequence[Ids] | None = None,
    rules: Rules | None = None,
    eos: int | None = None,
    decode: Decode | None = None,
    budget: int | None = None,
    progress: Progress | None = None,
) -> list[list[Hypothesis]]:
    """For each prompt its answers, best first; `rules.nbest` of them.

    No answer depends on which others are asked for at the same time.

    Options:
        prompts: what each answer begins with; the start token for an encoder-decoder
        sources: what an encoder-decoder reads; None for a decoder
        rules: how answers are chosen; None is greedy
        eos: the token that ends an answer; None: only length and stop strings end it
        decode: turns ids into text; needed for stop strings
        budget: most tokens side by side, sources, prompts and answers counted; None: 16384, or more if their
            keys and values fit into 256 MiB; twice as many where two threads share a batch of beams
        progress: called with (prompts done, prompts in all) when some are done
    """
    rules = rules or Rules()
    writer = check(model, prompts, sources)
    _check_stop(rules, decode)
    limits = room(writer, prompts, sources, rules)
    sizes = _sizes(prompts, sources, limits, rules)
    beams = rules.method == "beam" and rules.beam > 1
    side, times = workers(writer, beams)
    count = max(1, min(side, len(sizes)))
    budget = budget or times * max(LEAST, HELD // _bytes_of_token(writer))
    budget = 1 if rules.draft else budget  # who guesses ahead goes alone
    lines = [Waiting(dict(list(sizes.items())[worker::count]), budget) for worker in range(count)]
    empty = Hypothesis([], 0.0, 0.0, "" if decode else None, "length")
    answers = {number: [empty] for number, limit in enumerate(limits) if limit <= 0}

    def some(numbers: Sequence[int]) -> tuple[list[Ids], list[Ids] | None, list[int]]:
        read = None if sources is None else [sources[n] for n in numbers]
        return [prompts[n] for n in numbers], read, [limits[n] for n in numbers]

    def begin(numbers: Sequence[int]) -> Beams:
        starts, read, longest = some(numbers)
        return Beams(Session(writer, starts, read, rules.cache), longest, numbers, rules, eos)

    def write(worker: int) -> Iterator[list[tuple[int, list[Hypothesis]]]]:
        if beams:
            for done in searched(begin, lines[worker]):
                if done:
                    yield [(number, _said(hypotheses, decode)) for number, hypotheses in done]
        else:
            while numbers := lines[worker].take():
                found = _token_by_token(writer, *some(numbers), rules, eos, decode)
                yield list(zip(numbers, found, strict=True))

    if answers and progress is not None:
        progress(len(answers), len(prompts))
    with at_rest(writer):
        for done in side_by_side(write, count):
            for number, hypotheses in done:
                answers[number] = hypotheses
                if progress is not None:
                    progress(len(answers), len(prompts))
    return [answers[number] for number in range(len(prompts))]


def _bytes_of_token(model: Model) -> int:
    """About what a token takes in a cache: a key and a value for each layer, in float32."""
    return 8 * model.dims.layers * model.dims.width


@dataclass(frozen=True)
class Piece:
    """One token of a streamed answer.

    Options:
        id: the token; None if it was the end token
        text: the text that has become certain with it: never half a character, never a part of a stop string
        answer: the whole answer, in the last piece only
    """

    id: int | None
    text: str = ""
    answer: Hypothesis | None = None


def stream(
    model: Model,
    prompt: Ids,
    source: Ids | None = None,
    rules: Rules | None = None,
    eos: int | None = None,
    decode: Decode | None = None,
) -> Iterator[Piece]:
    """One answer, a piece for every token as soon as it is written; the same tokens and text as `generate`
    gives.

    Closing the iterator ends the work. An answer that may have no token gives one empty piece.
    """
    rules = rules or Rules()
    sources = None if source is None else [source]
    writer = check(model, [prompt], sources)
    _check_stop(rules, decode)
    if rules.method == "beam" or rules.nbest > 1:
        raise UsageError(
            "Only one answer written token by token can be streamed; choose greedy or sample, nbest 1."
        )
    return _stream(writer, prompt, source, room(writer, [prompt], sources, rules)[0], rules, eos, decode)


def _stream(
    model: Decoder | EncoderDecoder,
    prompt: Ids,
    source: Ids | None,
    limit: int,
    rules: Rules,
    eos: int | None,
    decode: Decode | None,
) -> Iterator[Piece]:
    row = Row(limit, None if decode is None else Text(decode, rules.stop))
    if row.end is not None:
        yield Piece(None, "", row.hypothesis())
        return
    with at_rest(model):
        session = Session(model, [prompt], None if source is None else [source], rules.cache, rules.draft)
        for _ in _written(session, [row], rules, eos, [prompt], [key(rules.seed, prompt, source)]):
            token = None if row.end == "eos" else row.ids[-1]
            yield Piece(token, row.fresh, None if row.end is None else row.hypothesis())


def _check_stop(rules: Rules, decode: Decode | None) -> None:
    if rules.stop and decode is None:
        raise UsageError(
            "Stop strings are looked for in the text, but no decoder of text was given; give `decode`."
        )


def _sizes(
    prompts: Sequence[Ids], sources: Sequence[Ids] | None, limits: Sequence[int], rules: Rules
) -> dict[int, int]:
    """The most tokens that each prompt may come to, with its source and its answers; the largest first."""
    copies = rules.beam if rules.method == "beam" else rules.nbest
    read = [0] * len(prompts) if sources is None else [len(source) for source in sources]
    size = {n: read[n] + copies * (len(prompts[n]) + limits[n]) for n in range(len(prompts)) if limits[n] > 0}
    return dict(sorted(size.items(), key=lambda pair: pair[1], reverse=True))


def _said(hypotheses: list[Hypothesis], decode: Decode | None) -> list[Hypothesis]:
    return hypotheses if decode is None else [replace(h, text=decode(h.ids)) for h in hypotheses]


def _token_by_token(
    model: Decoder | EncoderDecoder,
    prompts: Sequence[Ids],
    sources: Sequence[Ids] | None,
    limits: Sequence[int],
    rules: Rules,
    eos: int | None,
    decode: Decode | None,
) -> list[list[Hypothesis]]:
    """The answers of one batch."""
    session = Session(model, prompts, sources, rules.cache, rules.draft)
    draws = rules.nbest
    watch = decode if rules.stop else None  # without stop strings the text is wanted only at the end
    rows = [Row(limit, Text(watch, rules.stop) if watch else None) for limit in limits for _ in range(draws)]
    starts = [prompt for prompt in prompts for _ in range(draws)]
    keys: list[int] = []
    if rules.method == "sample":
        numbers = [(n, draw) for n in range(len(prompts)) for draw in range(draws)]
        keys = [key(rules.seed, prompts[n], sources[n] if sources else None, draw) for n, draw in numbers]
        if draws > 1:
            session.repeat(draws)
    for _ in _written(session, rows, rules, eos, starts, keys):
        pass
    found = [row.hypothesis() for row in rows]
    if decode is not None and watch is None:
        found = _said(found, decode)
    if rules.method == "beam":
        found = [replace(h, score=h.logp / penalty(_length(h), rules.alpha)) for h in found]
    return [found[n * draws : (n + 1) * draws] for n in range(len(prompts))]


def _written(
    session: Session,
    rows: Sequence[Row],
    rules: Rules,
    eos: int | None,
    prompts: Sequence[Ids],
    keys: Sequence[int],
) -> Iterator[None]:
    """Rows written token by token, or the only one with guesses."""
    if rules.draft:
        return leap(session, rows[0], rules, eos, prompts[0], keys)
    return walk(session, rows, rules, eos, prompts, keys)


def _length(hypothesis: Hypothesis) -> int:
    return len(hypothesis.ids) + (hypothesis.end == "eos")
