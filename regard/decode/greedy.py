"""Answers written token by token: the most probable one each time, or one that is drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.decode.engine import Session
from regard.decode.rules import End, Hypothesis, Rules
from regard.decode.sample import draw, penalise
from regard.decode.text import Text


class Row:
    """One answer being written.

    Options:
        limit: most tokens it may have
        text: follows its text, if there is a decoder of text
    """

    def __init__(self, limit: int, text: Text | None = None) -> None:
        self.limit = limit
        self.text = text
        self.ids: list[int] = []
        self.logp = 0.0
        self.end: End | None = None if limit > 0 else "length"
        self.fresh = ""

    def take(self, token: int, logp: float, eos: int | None) -> None:
        """Append a token, and see whether the answer ends with it."""
        self.logp += logp
        if token == eos:
            self.end = "eos"
        else:
            self.ids.append(token)
            if len(self.ids) == self.limit:
                self.end = "length"
        if self.text is not None:
            self.fresh = self.text.grow(self.ids, last=self.end is not None)
            if self.text.stopped:
                self.end = "stop"

    def hypothesis(self) -> Hypothesis:
        """The finished answer."""
        assert self.end is not None
        text = None if self.text is None else self.text.said
        return Hypothesis(self.ids, self.logp, self.logp, text, self.end)


def walk(
    session: Session,
    rows: Sequence[Row],
    rules: Rules,
    eos: int | None = None,
    prompts: Sequence[Sequence[int]] = (),
    keys: Sequence[int] = (),
) -> Iterator[None]:
    """Write one token to every row and yield, until all have ended. Rows that have ended leave the batch.

    Options:
        rows: one for each row of the session, in its order
        prompts: what is counted as already there by the repetition penalty
        keys: the random streams of the rows (`sample.key`)
    """
    alive = list(rows)
    seen_NV = _seen(prompts, session.logits_NV) if rules.repetition != 1 else None
    key_N = torch.tensor(keys, dtype=torch.int64, device=session.device)
    for place in range(max(row.limit for row in rows)):
        logits_NV = session.logits_NV
        ids_N = _choose(logits_NV, rules, eos if place < rules.min_length else None, seen_NV, key_N, place)
        # log p of the model itself, whatever was done to the logits for the choice
        logp_N = logits_NV.gather(-1, ids_N[:, None])[:, 0] - logits_NV.logsumexp(-1)
        for row, token, logp in zip(alive, ids_N.tolist(), logp_N.tolist(), strict=True):
            row.take(token, logp, eos)
        yield
        stay = [n for n, row in enumerate(alive) if row.end is None]
        if not stay:
            return
        if seen_NV is not None:
            seen_NV.scatter_(1, ids_N[:, None], True)
        if len(stay) < len(alive):
            index_N = torch.tensor(stay, device=session.device)
            session.keep(index_N)
            alive = [alive[n] for n in stay]
            ids_N = ids_N[index_N]
            key_N = key_N[index_N] if len(key_N) else key_N
            seen_NV = None if seen_NV is None else seen_NV[index_N]
        session.step(ids_N)


def _choose(
    logits_NV: Tensor, rules: Rules, banned: int | None, seen_NV: Tensor | None, key_N: Tensor, place: int
) -> Tensor:
    if seen_NV is not None:
        logits_NV = penalise(logits_NV, seen_NV, rules.repetition)
    if banned is not None:
        logits_NV = logits_NV.clone()
        logits_NV[:, banned] = -torch.inf
    if rules.method == "sample":
        return draw(logits_NV, rules, key_N, place)
    return logits_NV.argmax(-1)


def _seen(prompts: Sequence[Sequence[int]], logits_NV: Tensor) -> Tensor:
    seen_NV = torch.zeros(logits_NV.shape, dtype=torch.bool, device=logits_NV.device)
    for row_V, prompt in zip(seen_NV, prompts, strict=True):
        row_V[list(prompt)] = True
    return seen_NV
