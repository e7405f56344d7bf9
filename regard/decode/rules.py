"""How an answer is chosen, and what an answer is."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from regard.errors import UsageError
from regard.nn.cache import Precision

End = Literal["eos", "stop", "length"]

# Which methods read an option. Given to another method it would be lost without a word, so it is refused.
READ_BY: dict[str, tuple[str, ...]] = {
    "temperature": ("sample",),
    "top_k": ("sample",),
    "top_p": ("sample",),
    "min_p": ("sample",),
    "repetition": ("greedy", "sample"),
    "stop": ("greedy", "sample"),
    "draft": ("greedy", "sample"),
    "beam": ("beam",),
    "alpha": ("beam",),
    "patience": ("beam",),
    "nbest": ("sample", "beam"),
}


@dataclass(frozen=True)
class Rules:
    """How an answer is chosen.

    greedy takes the most probable next token, sample draws one, beam searches for the most probable whole
    answer. The filters of sampling are applied in the order in which they stand here; see
    `regard.decode.sample`.

    Options:
        length: most new tokens of an answer, its end token counted; None is as many as the model holds
            (decoders) or the length of the source plus 50 (encoder-decoders; Vaswani et al. 2017, section
            6.1)
        method: greedy, sample or beam
        repetition: logits of tokens that were there before are divided (if positive) or multiplied (if
        negative)
            by this; 1 is off
        temperature: logits are divided by this; 0 is greedy
        top_k: only the k most probable tokens
        top_p: only the smallest set of most probable tokens whose mass is at least p
        min_p: only tokens at least this times as probable as the most probable one
        seed: with the prompt, decides every draw
        beam: hypotheses kept alive side by side; 1 is greedy
        alpha: strength of the length penalty ((5 + length) / 6) ** alpha; 0 is none
        patience: a search ends when this times `beam` hypotheses have ended, though better ones might follow;
            None: not before it is certain that none does
        nbest: answers returned for each prompt: the best ones (beam) or independent draws (sample)
        stop: strings that end an answer; the text is cut before them
        min_length: the end token is forbidden until the answer has this many tokens
        cache: how keys and values are kept: full, or int8, in about a quarter of the bytes
        draft: most tokens that are guessed ahead, from what followed the same tokens before, and read in one
            step; the answer is the same (see `regard.decode.speculate`). 0 guesses nothing
    """

    length: int | None = None
    method: Literal["greedy", "sample", "beam"] = "greedy"
    repetition: float = 1.0
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0
    beam: int = 4
    alpha: float = 0.6
    patience: float | None = None
    nbest: int = 1
    stop: tuple[str, ...] = ()
    min_length: int = 0
    cache: Precision = "full"
    draft: int = 0

    def __post_init__(self) -> None:
        if self.method not in ("greedy", "sample", "beam"):
            raise UsageError(f"method must be greedy, sample or beam, but is {self.method!r}.")
        if self.cache not in ("full", "int8"):
            raise UsageError(f"cache must be full or int8, but is {self.cache!r}.")
        if not isinstance(self.stop, tuple) or not all(isinstance(s, str) and s for s in self.stop):
            raise UsageError(f"stop must be a tuple of strings that are not empty, but is {self.stop!r}.")
        for name, low, high, whole in _BOUNDS:
            _check(name, getattr(self, name), low, high, whole)
        for field in fields(self):
            methods = READ_BY.get(field.name)
            if methods and self.method not in methods and getattr(self, field.name) != field.default:
                raise UsageError(
                    f"{field.name} is an option of {' and '.join(methods)}, but the method is {self.method}; "
                    f"choose that method or leave {field.name} out."
                )
        if self.method == "beam" and self.nbest > self.beam:
            raise UsageError(f"nbest must be at most beam, but is {self.nbest} with a beam of {self.beam}.")
        if self.draft and self.nbest > 1:
            raise UsageError(
                f"draft writes one answer at a time, but nbest is {self.nbest}; leave one of them out."
            )


_BOUNDS: tuple[tuple[str, float, float, bool], ...] = (
    ("length", 0, math.inf, True),
    ("repetition", 1e-6, math.inf, False),
    ("temperature", 0, math.inf, False),
    ("top_k", 1, math.inf, True),
    ("top_p", 1e-9, 1, False),
    ("min_p", 0, 1, False),
    ("seed", -(2**63), 2**63 - 1, True),
    ("beam", 1, math.inf, True),
    # A negative alpha would reward short answers and void the bound by which beam search stops early.
    ("alpha", 0, math.inf, False),
    ("patience", 1e-6, math.inf, False),
    ("nbest", 1, math.inf, True),
    ("min_length", 0, math.inf, True),
    ("draft", 0, math.inf, True),
)


def _check(name: str, value: object, low: float, high: float, whole: bool) -> None:
    if value is None and name in ("length", "top_k", "top_p", "min_p", "patience"):
        return
    kind = "a whole number" if whole else "a number"
    right = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if right and low <= value <= high and not math.isinf(value):  # type: ignore[operator,arg-type]
        return
    span = f"of at least {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"
    raise UsageError(f"{name} must be {kind} {span}, but is {value!r}.")


@dataclass(frozen=True)
class Hypothesis:
    """One answer.

    Options:
        ids: what the model wrote after the prompt, without the end token
        logp: log p(ids | prompt, source) under the model itself, before temperature, filters and penalties;
            the end token is counted if the answer ended with it
        score: what answers are ranked by: logp divided by the length penalty (beam), else logp
        text: the ids in words, cut before the first stop string, if a decoder of text was given
        end: why it ended: eos, stop or length
    """

    ids: list[int]
    logp: float
    score: float
    text: str | None = None
    end: End = "length"
