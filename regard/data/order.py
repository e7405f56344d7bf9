"""Random order without a random generator: a hash of (seed, epoch, number), the same everywhere."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def mix(seed: int, epoch: int, numbers: ArrayLike) -> NDArray[np.uint64]:
    """64 random bits for each number, a pure function of (seed, epoch, number).

    Steps of the golden ratio through SplitMix64's finalizer, once for each of the three:

        z = (z xor z >> 30) * c1;  z = (z xor z >> 27) * c2;  z xor z >> 31

    Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators" (Stafford's mix 13).
    """
    z = np.zeros(1, np.uint64)  # one element, not none: numpy warns when a bare number wraps around
    seeds = [np.array([n % 2**64], np.uint64) for n in (seed, epoch)]
    for number in (*seeds, np.atleast_1d(np.asarray(numbers)).astype(np.uint64)):
        z = _finalize(z + (number + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))
    return z


def _finalize(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def order(n: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """A random order of the numbers 0 to n - 1, another one for each seed and each epoch."""
    return np.argsort(mix(seed, epoch, np.arange(n)), kind="stable").astype(np.int64)
