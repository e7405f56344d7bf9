"""Beam search: the most probable whole answers, several hypotheses side by side.

At every step each sentence has up to `beam` hypotheses alive. All their continuations compete; of the best
2 * beam of them, those that end are put among the finished, and the best `beam` others stay alive (2 * beam,
because at most `beam` of them can end). Finished hypotheses are ranked by

    score(Y) = log p(Y) / lp(Y),    lp(Y) = ((5 + |Y|) / 6) ** alpha

Wu et al. 2016 (GNMT), section 7, eq. 14, arXiv 1609.08144, without the coverage penalty; |Y| counts the end
token.

The search for a sentence stops when it cannot change the answer any more: log p only falls and is never
positive and lp only grows, so whatever an alive hypothesis becomes, its score is at most log p / lp(longest).
Once the worst of the answers wanted is as good as that bound of the best one alive, going on is in vain. That
is exact: the answers are those of a search that runs to the end. Hypotheses that the limit of length cuts off
are no whole answers: they are returned, best first, only where fewer have ended than are wanted.

With `patience` p, a sentence is also done as soon as p * beam hypotheses have ended, each of them among the
best `beam` of its step: sooner, but what would have won later is not found. Kasai et al. 2022, section 2.2,
arXiv 2204.05424; 1 is what fairseq, Marian and CTranslate2 do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.decode.engine import Session
from regard.decode.rules import Hypothesis, Rules
from regard.decode.workers import Waiting
from regard.native import best_words, can_choose
from regard.nn.slots import stacked

NEAR = 2**20  # logits that are looked at while they are near, 4 MiB


def penalty(length: int, alpha: float) -> float:
    """lp(Y) for an answer of this many tokens."""
    return float(((5 + length) / 6) ** alpha)


@dataclass
class Pool:
    """The best finished hypotheses of each sentence so far, best first; -inf where there is none.

    Letters: B sentences, N hypotheses of one sentence, L tokens.
    """

    score_BN: Tensor
    logp_BN: Tensor
    ids_BNL: Tensor

    def add(self, score_BC: Tensor, logp_BC: Tensor, ids_BCL: Tensor) -> None:
        """Let new ones compete for the places."""
        missing = self.ids_BNL.shape[-1] - ids_BCL.shape[-1]
        ids_BCL = torch.nn.functional.pad(ids_BCL, (0, missing), value=-1)
        every_BN = torch.cat([self.score_BN, score_BC], 1)
        self.score_BN, best_BN = every_BN.topk(self.score_BN.shape[1], dim=1)
        self.logp_BN = torch.cat([self.logp_BN, logp_BC], 1).gather(1, best_BN)
        ids_BNL = torch.cat([self.ids_BNL, ids_BCL], 1)
        self.ids_BNL = ids_BNL.gather(1, best_BN[..., None].expand(-1, -1, ids_BNL.shape[-1]))

    def pick(self, index_B: Tensor) -> Pool:
        """Some sentences, in that order."""
        return Pool(self.score_BN[index_B], self.logp_BN[index_B], self.ids_BNL[index_B])

    def join(self, other: Pool) -> Pool:
        """These sentences and those."""
        return Pool(
            torch.cat([self.score_BN, other.score_BN]),
            torch.cat([self.logp_BN, other.logp_BN]),
            stacked(self.ids_BNL, other.ids_BNL, 2, empty=-1),
        )

    def read(self, index_B: Tensor) -> list[list[Hypothesis]]:
        """The finished hypotheses of some sentences."""
        some = self.pick(index_B)
        sentences = zip(some.score_BN.tolist(), some.logp_BN.tolist(), some.ids_BNL.tolist(), strict=True)
        return [
            [
                Hypothesis(_real(ids), logp, score, None, "eos")
                for score, logp, ids in zip(*sentence, strict=True)
                if score > -torch.inf
            ]
            for sentence in sentences
        ]


class Beams:
    """Sentences that are searched side by side. Those that are done leave, and others may join.

    Letters: B sentences, N hypotheses of one sentence, L tokens, which end in the last column; -1 before.

    Options:
        session: one row for each sentence
        limits: most tokens of each sentence's answer, the end token counted; at least 1
        numbers: what the sentences are called
        early: stop each sentence as soon as its answer is certain; False is for tests
    """

    def __init__(
        self,
        session: Session,
        limits: Sequence[int],
        numbers: Sequence[int],
        rules: Rules,
        eos: int | None,
        early: bool = True,
    ) -> None:
        device, size = session.device, len(limits)
        self.session, self.rules, self.eos, self.early = session, rules, eos, early
        self.number_B, self.limit_B = (torch.tensor(list(x), device=device) for x in (numbers, limits))
        self.length_B, self.ended_B = torch.zeros(2, size, dtype=torch.int64, device=device)
        self.alive_BN = torch.zeros(size, 1, dtype=torch.float64, device=device)  # log p
        self.token_BN = torch.empty(size, 1, dtype=torch.int64, device=device)  # chosen, not yet read
        self.ids_BNL = torch.empty(size, 1, 0, dtype=torch.int64, device=device)
        self.words, self.x_N1D = session.logits_NV.shape[-1], torch.empty(0)  # none: there are logits
        none_BN = torch.full((size, rules.nbest), -torch.inf, dtype=torch.float64, device=device)
        self.pool = Pool(none_BN, none_BN, torch.full((size, rules.nbest, max(limits)), -1, device=device))

    def __len__(self) -> int:
        return len(self.number_B)

    @property
    def joins(self) -> bool:
        """Whether sentences that have just made their first choice can join."""
        words = self.words - (self.eos is not None)
        return words >= self.rules.beam and self.session.cache.joins

    def step(self) -> None:
        """Read the tokens that were chosen."""
        if self.session.model.quick is None:
            self.x_N1D = self.session.states(self.token_BN.flatten())
        else:  # a compiled step makes all logits at once
            self.session.step(self.token_BN.flatten())

    def choose(self) -> list[tuple[int, list[Hypothesis]]]:
        """Choose the next token of every hypothesis. Who is done then leaves, and is returned."""
        rules, eos = self.rules, self.eos
        self.length_B = self.length_B + 1
        logp_BC, parent_BC, token_BC = self._candidates()
        ends_BC = torch.zeros_like(token_BC, dtype=torch.bool) if eos is None else token_BC == eos
        if bool(ends_BC.any()):
            ended_BC = logp_BC.masked_fill(~ends_BC, -torch.inf)
            score_BC = ended_BC / _penalties(self.length_B, rules.alpha)[:, None]
            wanted = min(rules.nbest, score_BC.shape[1])  # no place for more
            score_BX, which_BX = score_BC.topk(wanted, dim=1)
            ids_BXL = _rows(self.ids_BNL, parent_BC.gather(1, which_BX))
            self.pool.add(score_BX, ended_BC.gather(1, which_BX), ids_BXL)
            self.ended_B = self.ended_B + (ended_BC[:, : rules.beam] > -torch.inf).sum(1)
        before = self.alive_BN.shape[1]
        width = max(1, min(rules.beam, before * (self.words - (eos is not None))))
        self.alive_BN, which_BN = logp_BC.masked_fill(ends_BC, -torch.inf).topk(width, dim=1)
        parent_BN, self.token_BN = parent_BC.gather(1, which_BN), token_BC.gather(1, which_BN)
        self.ids_BNL = torch.cat([_rows(self.ids_BNL, parent_BN), self.token_BN[..., None]], -1)
        over_B = self._over()
        done = self._answers(over_B.nonzero()[:, 0]) if bool(over_B.any()) else []
        stay_B = _staying(over_B)
        if len(stay_B):
            _move(self.session, parent_BN, before, stay_B)
        if done:
            self._leave(stay_B)
        return done

    def _candidates(self) -> tuple[Tensor, Tensor, Tensor]:
        """The best continuations, some sentences at a time: so logits stay near the processor."""
        rules, eos, (size, each) = self.rules, self.eos, self.alive_BN.shape
        barred_B = self.length_B <= rules.min_length if rules.min_length and eos is not None else None
        some, found = max(1, NEAR // (each * self.words)), []
        for start in range(0, size, some):
            here = slice(start, start + some)
            rows = slice(start * each, (start + some) * each)
            new = len(self.x_N1D) > 0
            logits_NV = self.session.logits(self.x_N1D[rows]) if new else self.session.logits_NV[rows]
            barred = None if barred_B is None else barred_B[here]
            found.append(candidates(logits_NV, self.alive_BN[here], rules.beam, eos, barred))
        logp_BC, parent_BC, token_BC = (torch.cat(parts) for parts in zip(*found, strict=True))
        return logp_BC, parent_BC, token_BC

    def join(self, other: Beams) -> None:
        """Go on with these sentences and those, which have chosen, too."""
        self.session.cache.join(other.session.cache)
        self.ids_BNL = _stacked_right(self.ids_BNL, other.ids_BNL)
        self.pool = self.pool.join(other.pool)
        for name in ("number_B", "limit_B", "length_B", "ended_B", "alive_BN", "token_BN"):
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))

    def _over(self) -> Tensor:
        """Whose search ends here: at its limit, because enough have ended, or because nothing can change."""
        rules, best_B = self.rules, self.alive_BN[:, 0]
        over_B: Tensor = (self.limit_B <= self.length_B) | (best_B == -torch.inf)
        if rules.patience is not None:
            over_B |= self.ended_B >= max(rules.patience * rules.beam, rules.nbest)
        if self.early:
            over_B |= self.pool.score_BN[:, -1] >= best_B / _penalties(self.limit_B, rules.alpha)
        return over_B

    def _answers(self, over_B: Tensor) -> list[tuple[int, list[Hypothesis]]]:
        """Of those who are done: what has ended, and where that is too little, what is cut off."""
        answers, nbest = self.pool.read(over_B), self.rules.nbest
        for place, found in zip(over_B.tolist(), answers, strict=True):
            if len(found) < nbest:
                over = penalty(int(self.length_B[place]), self.rules.alpha)
                found += _cut_off(self.alive_BN[place], self.ids_BNL[place], over)[: nbest - len(found)]
        return list(zip(self.number_B[over_B].tolist(), answers, strict=True))

    def _leave(self, stay_B: Tensor) -> None:
        """Only these sentences go on; columns that none of them fills are let go of."""
        for name in ("number_B", "limit_B", "length_B", "ended_B", "alive_BN", "token_BN", "ids_BNL"):
            setattr(self, name, getattr(self, name)[stay_B])
        self.pool = self.pool.pick(stay_B)
        if len(stay_B):
            self.ids_BNL = self.ids_BNL[..., -int(self.length_B.max()) :]


def search(
    session: Session, limits: Sequence[int], rules: Rules, eos: int | None, early: bool = True
) -> list[list[Hypothesis]]:
    """The best answers of each sentence of the session (one row each), best first."""
    beams = Beams(session, limits, range(len(limits)), rules, eos, early)
    answers = dict(beams.choose())
    while len(beams):
        beams.step()
        answers |= beams.choose()
    return [answers[number] for number in range(len(limits))]


def searched(
    begin: Callable[[list[int]], Beams], waiting: Waiting
) -> Iterator[list[tuple[int, list[Hypothesis]]]]:
    """The best answers of all sentences that wait, step by step: where some are done, others come in."""
    beams = begin(numbers) if (numbers := waiting.take()) else None
    while beams is not None:
        yield beams.choose()
        if not len(beams):
            beams = None  # before others come, who need as much memory
            beams = begin(numbers) if (numbers := waiting.take()) else None
            continue
        if beams.joins and (numbers := waiting.take(beams.number_B.tolist())):
            fresh = begin(numbers)
            yield fresh.choose()
            if len(fresh):
                beams.join(fresh)
        beams.step()


def candidates(
    logits_NV: Tensor, alive_BN: Tensor, beam: int, eos: int | None = None, barred_B: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The best 2 * beam continuations of each sentence: (log p, which hypothesis they continue, token).

    Sentences that are barred may not end. The logits are used up: log p is written where they stand.
    """
    count = min(2 * beam, alive_BN.shape[1] * logits_NV.shape[1])
    if can_choose(logits_NV):
        return best_words(logits_NV, alive_BN, count, eos, barred_B)
    logp_BNV = torch.log_softmax(logits_NV, -1, out=logits_NV).view(*alive_BN.shape, -1)
    if barred_B is not None:
        logp_BNV[..., eos].masked_fill_(barred_B[:, None], -torch.inf)
    words = logp_BNV.shape[2]
    logp_BC, place_BC = largest(logp_BNV, alive_BN, count)
    return logp_BC, place_BC // words, place_BC % words


def largest(x_BNV: Tensor, more_BN: Tensor, count: int, piece: int = 64) -> tuple[Tensor, Tensor]:
    """The `count` largest of each x + more, and where they stand if N and V are one axis, best first.

    What `topk` gives, sooner: rows are cut into pieces. What is among the `count` largest stands in one of
    the `count` pieces with the largest heads, or in what is left over at the end of the rows, and only these
    have to be sorted.
    """
    (B, N, V), pieces = x_BNV.shape, x_BNV.shape[2] // piece
    if N * pieces <= 2 * count:
        return (x_BNV + more_BN[..., None]).flatten(1).topk(count)
    x_BNPX = x_BNV[..., : pieces * piece].unflatten(2, (pieces, piece))
    head_BP = (x_BNPX.amax(-1) + more_BN[..., None]).flatten(1)
    best_BC = head_BP.topk(count, sorted=False).indices
    row_B1 = torch.arange(B, device=x_BNV.device)[:, None]
    of_BC, which_BC = best_BC // pieces, best_BC % pieces
    found_BCX = x_BNPX[row_B1, of_BC, which_BC] + more_BN.gather(1, of_BC)[..., None]
    place_BCX = (of_BC * V + which_BC * piece)[..., None] + torch.arange(piece, device=x_BNV.device)
    found_BX, place_BX = found_BCX.flatten(1), place_BCX.flatten(1)
    if pieces * piece < V:
        rest_NX = torch.arange(N * V, device=x_BNV.device).view(N, V)[:, pieces * piece :]
        found_BX = torch.cat([found_BX, (x_BNV[..., pieces * piece :] + more_BN[..., None]).flatten(1)], 1)
        place_BX = torch.cat([place_BX, rest_NX.flatten().expand(B, -1)], 1)
    found_BC, index_BC = found_BX.topk(count)
    return found_BC, place_BX.gather(1, index_BC)


def _rows(ids_BNL: Tensor, index_BC: Tensor) -> Tensor:
    return ids_BNL.gather(1, index_BC[..., None].expand(-1, -1, ids_BNL.shape[-1]))


def _staying(over_B: Tensor) -> Tensor:
    """Who stays: in its place, or, if it is one of the last, in the place of one who leaves."""
    stay_B = torch.arange(int((~over_B).sum()), device=over_B.device)
    last_B = (~over_B[len(stay_B) :]).nonzero()[:, 0]
    stay_B[over_B[: len(stay_B)]] = last_B + len(stay_B)
    return stay_B


def _move(session: Session, parent_BN: Tensor, before: int, stay_B: Tensor) -> None:
    """Let the session's rows, `before` of each sentence, be the alive hypotheses of those that stay."""
    first_B1 = torch.arange(len(parent_BN), device=parent_BN.device)[:, None] * before
    session.keep((first_B1 + parent_BN)[stay_B].flatten(), stay_B)


def _cut_off(alive_N: Tensor, ids_NL: Tensor, over: float) -> list[Hypothesis]:
    rows = zip(alive_N.tolist(), map(_real, ids_NL.tolist()), strict=True)
    return [Hypothesis(ids, logp, logp / over, None, "length") for logp, ids in rows if logp > -torch.inf]


def _real(ids: list[int]) -> list[int]:
    return [token for token in ids if token >= 0]


def _stacked_right(a_BNL: Tensor, b_BNL: Tensor) -> Tensor:
    """The rows of both; the shorter ones begin with -1."""
    return stacked(a_BNL.flip(-1), b_BNL.flip(-1), 2, empty=-1).flip(-1)


def _penalties(length_B: Tensor, alpha: float) -> Tensor:
    """lp for answers of so many tokens each."""
    return ((5 + length_B.double()) / 6) ** alpha
