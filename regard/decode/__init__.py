"""Writing answers: prefill and step over the cache, for decoders and encoder-decoders alike.

generate      answers to any number of prompts: greedy, sample, beam
stream        one answer, piece by piece
score         log p of given answers
align         where an encoder-decoder looks while it writes
Rules         how an answer is chosen
Hypothesis    an answer
"""

from __future__ import annotations

from regard.decode.align import align
from regard.decode.generate import Piece, generate, stream
from regard.decode.rules import Hypothesis, Rules
from regard.decode.score import score, score_tokens

__all__ = ["Hypothesis", "Piece", "Rules", "align", "generate", "score", "score_tokens", "stream"]
