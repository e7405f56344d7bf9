"""Several tokens in one step, where they can be guessed: the answer is the same, and comes sooner.

A guess of the next tokens is read in one pass, which costs little more than one token, because a step's time
goes into reading the weights. Then the model itself chooses, place by place: while it chooses what was
guessed, the next place has been read already; at the first other choice, what was guessed after it is taken
back. So nothing is written that the model would not have written token by token, whether it takes the most
probable token or draws: a draw is fixed by (seed, prompt, place), see `regard.decode.sample`.

Leviathan et al. 2023, https://arxiv.org/abs/2211.17192, with draws that agree in place of their correction;
the guesses are those of prompt look-up (Saxena 2023): what followed the same few tokens before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from regard.decode.engine import Session
from regard.decode.greedy import Choice, Row
from regard.decode.rules import Rules

ORDER = 8  # the longest run of tokens that is looked up


class Echo:
    """What came after the last few tokens when they stood there before; the longest run of them decides."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.after: dict[tuple[int, ...], int] = {}
        self.ids: list[int] = []
        for token in ids:
            self.add(token)

    def add(self, token: int) -> None:
        """One more token, remembered as what follows each run that ends before it."""
        for n in range(1, min(ORDER, len(self.ids)) + 1):
            self.after[tuple(self.ids[-n:])] = token
        self.ids.append(token)

    def guess(self, count: int) -> list[int]:
        """Up to so many tokens that may follow."""
        last: list[int] = self.ids[-ORDER:]
        found: list[int] = []
        while len(found) < count:
            runs = (tuple(last[n:]) for n in range(len(last)))
            token = next((self.after[run] for run in runs if run in self.after), None)
            if token is None:
                break
            found.append(token)
            last = [*last, token][-ORDER:]
        return found


def leap(
    session: Session,
    row: Row,
    rules: Rules,
    eos: int | None = None,
    prompt: Sequence[int] = (),
    keys: Sequence[int] = (),
) -> Iterator[None]:
    """Write one row as `walk` does, and yield after every token; `rules.draft` tokens are guessed at most.

    Where guesses fail, fewer are made: one more than came true the last time; twice as many when all did.
    """
    choice = Choice(session, rules, eos, [prompt], keys)
    echo, most = Echo(prompt), rules.draft
    guesses: list[int] = []
    logits_LV = session.logits_NV
    while True:
        for number, logits_V in enumerate(logits_LV):
            ids_N, logp_N = choice.next(logits_V[None])
            token = int(ids_N)
            row.take(token, float(logp_N), eos)
            yield
            if row.end is not None:
                return
            echo.add(token)
            if number == len(guesses) or token != guesses[number]:
                session.rollback(len(guesses) - number)
                break
        if guesses:
            most = min(rules.draft, 2 * most if number == len(guesses) else number + 1)
        guesses = echo.guess(min(most, row.limit - len(row.ids) - 1))
        logits_LV = session.read([token, *guesses])
