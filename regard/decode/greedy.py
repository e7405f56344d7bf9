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


class Choice:
    """The next token of every row: the most probable one that the rules allow, or one that is drawn.

    Options:
        prompts: what is counted as already there by the repetition penalty
        keys: the random streams of the rows (`sample.key`)
    """

    def __init__(
        self,
        session: Session,
        rules: Rules,
        eos: int | None,
        prompts: Sequence[Sequence[int]],
        keys: Sequence[int],
    ) -> None:
        self.rules, self.eos, self.place = rules, eos, 0
        self.seen_NV = _seen(prompts, session.logits_NV) if rules.repetition != 1 else None
        self.key_N = torch.tensor(keys, dtype=torch.int64, device=session.device)

    def next(self, logits_NV: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens that are chosen, and their log p under the model itself, whatever the rules do to it."""
        ids_N = self._choose(logits_NV)
        logp_N = logits_NV.gather(-1, ids_N[:, None])[:, 0] - logits_NV.logsumexp(-1)
        self.place += 1
        if self.seen_NV is not None:
            self.seen_NV.scatter_(1, ids_N[:, None], True)
        return ids_N, logp_N

    def keep(self, index_N: Tensor) -> None:
        """Go on with these rows."""
        self.key_N = self.key_N[index_N] if len(self.key_N) else self.key_N
        self.seen_NV = None if self.seen_NV is None else self.seen_NV[index_N]

    def _choose(self, logits_NV: Tensor) -> Tensor:
        rules = self.rules
        if self.seen_NV is not None:
            logits_NV = penalise(logits_NV, self.seen_NV, rules.repetition)
        if self.eos is not None and self.place < rules.min_length:
            logits_NV = logits_NV.clone()
            logits_NV[:, self.eos] = -torch.inf
        if rules.method == "sample":
            return draw(logits_NV, rules, self.key_N, self.place)
        return logits_NV.argmax(-1)


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
        prompts, keys: see `Choice`
    """
    alive, choice = list(rows), Choice(session, rules, eos, prompts, keys)
    while True:
        ids_N, logp_N = choice.next(session.logits_NV)
        for row, token, logp in zip(alive, ids_N.tolist(), logp_N.tolist(), strict=True):
            row.take(token, logp, eos)
        yield
        stay = [n for n, row in enumerate(alive) if row.end is None]
        if not stay:
            return
        if len(stay) < len(alive):
            index_N = torch.tensor(stay, device=session.device)
            session.keep(index_N)
            choice.keep(index_N)
            alive, ids_N = [alive[n] for n in stay], ids_N[index_N]
        session.step(ids_N)


def _seen(prompts: Sequence[Sequence[int]], logits_NV: Tensor) -> Tensor:
    seen_NV = torch.zeros(logits_NV.shape, dtype=torch.bool, device=logits_NV.device)
    for row_V, prompt in zip(seen_NV, prompts, strict=True):
        row_V[list(prompt)] = True
    return seen_NV
