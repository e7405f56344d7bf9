"""Small algorithms to learn: pairs of texts made on the fly, each a pure function of (seed, split, number).

Every symbol is one character, so a sample can be read, typed and checked by eye: 'abc' -> 'cba'.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from regard.errors import UsageError

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")
Algorithm = Literal["copy", "reverse", "sort", "addition", "parity", "lookup"]
SYMBOLS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def generator(seed: int, split: Split, number: int) -> np.random.Generator:
    """Random numbers that belong to one sample: the same whatever was drawn before.

    Philox is a counter-based generator (Salmon et al. 2011): its key is the address of the sample.
    """
    return np.random.Generator(np.random.Philox(key=[(seed * 3 + SPLITS.index(split)) % 2**64, number]))


def draws(seed: int, epoch: int, number: int) -> np.random.Generator:
    """Random numbers for what is done to one sample in one epoch (masking, say)."""
    return np.random.Generator(np.random.Philox(key=[seed % 2**64, epoch * 2**40 + number]))


def sample(
    name: Algorithm,
    seed: int,
    split: Split,
    number: int,
    symbols: int,
    shortest: int,
    longest: int,
    hops: int,
) -> tuple[str, str]:
    """One pair of question and answer; the length is uniform in [shortest, longest]."""
    draw = generator(seed, split, number)
    return ALGORITHMS[name](draw, int(draw.integers(shortest, longest + 1)), symbols, hops)


def alphabet(name: Algorithm, symbols: int) -> str:
    """The characters that questions and answers are made of."""
    if name == "addition":
        return "0123456789+"
    if name == "parity":
        return "01"
    if not 1 <= symbols <= len(SYMBOLS):
        raise UsageError(f"symbols must be between 1 and {len(SYMBOLS)}, but is {symbols}.")
    return SYMBOLS[:symbols] + ("?" if name == "lookup" else "")


def copy(draw: np.random.Generator, length: int, symbols: int, hops: int) -> tuple[str, str]:
    """'abc' -> 'abc'."""
    text = _random(draw, length, symbols)
    return text, text


def reverse(draw: np.random.Generator, length: int, symbols: int, hops: int) -> tuple[str, str]:
    """'abc' -> 'cba': impossible for attention without positions."""
    text = _random(draw, length, symbols)
    return text, text[::-1]


def sort(draw: np.random.Generator, length: int, symbols: int, hops: int) -> tuple[str, str]:
    """'cab' -> 'abc', in the order of the alphabet a..z A..Z 0..9."""
    text = _random(draw, length, symbols)
    return text, "".join(sorted(text, key=SYMBOLS.index))


def addition(draw: np.random.Generator, length: int, symbols: int, hops: int) -> tuple[str, str]:
    """'123+45' -> '168': two numbers of at most `length` digits."""
    first, second = (_digits(draw, int(draw.integers(1, length + 1))) for _ in range(2))
    return f"{first}+{second}", str(int(first) + int(second))


def parity(draw: np.random.Generator, length: int, symbols: int, hops: int) -> tuple[str, str]:
    """'10110' -> '1': whether the number of ones is odd."""
    bits = draw.integers(0, 2, length)
    return "".join(map(str, bits)), str(int(bits.sum()) % 2)


def lookup(draw: np.random.Generator, length: int, symbols: int, hops: int) -> tuple[str, str]:
    """'bcabca?a' with 2 hops -> 'c': pairs b->c, a->b, c->a in any order, then a start to follow from.

    The pairs form one ring, so that every hop leads on and 2 hops never end where they began.
    """
    ring = draw.permutation(symbols)[: max(length, hops + 1)]
    pairs = [SYMBOLS[a] + SYMBOLS[b] for a, b in zip(ring, np.roll(ring, -1), strict=True)]
    start = int(draw.integers(len(ring)))
    question = "".join(pairs[n] for n in draw.permutation(len(pairs)))
    return f"{question}?{SYMBOLS[ring[start]]}", SYMBOLS[ring[(start + hops) % len(ring)]]


ALGORITHMS: dict[Algorithm, Callable[[np.random.Generator, int, int, int], tuple[str, str]]] = {
    "copy": copy,
    "reverse": reverse,
    "sort": sort,
    "addition": addition,
    "parity": parity,
    "lookup": lookup,
}


def _random(draw: np.random.Generator, length: int, symbols: int) -> str:
    return "".join(SYMBOLS[n] for n in draw.integers(0, symbols, length))


def _digits(draw: np.random.Generator, length: int) -> str:
    """A number without leading zeros; a number of one digit may be 0."""
    low = 0 if length == 1 else 10 ** (length - 1)
    return str(int(draw.integers(low, 10**length)))
