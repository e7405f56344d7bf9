"""Laws instead of only examples: what holds for every part and every system that is ever registered.

subjects    what they are tried on: all parts, all systems, in all variants, tiny
models      of any model: gradients, round trips, seeds, saving, padding and batch-mates, ways of attention
writers     of models that write: the future is blind, token by token equals one pass, beams, rollback, bytes
attention   of attention itself: every position x pattern x grouping x padding, each way the same
claims      which law is claimed of whom; `prove` tries them all and `table` writes docs/PROOFS.md

A law is a function that returns the largest difference it found, or raises CheckFailed. The tests assert
every claim; `regard prove` prints them with their figures.
"""

from regard.laws.attention import ways_agree
from regard.laws.claims import Claim, Row, claims, prove, table
from regard.laws.models import (
    born_from_seed,
    gradients_arrive,
    loss_falls,
    padding_is_blind,
    round_trip,
    saved_exactly,
    ways_agree_in,
)
from regard.laws.subjects import lively
from regard.laws.writers import (
    beams_equal_forward,
    cache_is_counted,
    decode_equals_forward,
    future_is_blind,
    rollback_equals_forward,
)

__all__ = [
    "Claim",
    "Row",
    "beams_equal_forward",
    "born_from_seed",
    "cache_is_counted",
    "claims",
    "decode_equals_forward",
    "future_is_blind",
    "gradients_arrive",
    "lively",
    "loss_falls",
    "padding_is_blind",
    "prove",
    "rollback_equals_forward",
    "round_trip",
    "saved_exactly",
    "table",
    "ways_agree",
    "ways_agree_in",
]
