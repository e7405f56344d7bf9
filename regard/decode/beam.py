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

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.decode.engine import Session
from regard.decode.rules import Hypothesis, Rules


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

    def read(self, row: int) -> list[Hypothesis]:
        """The finished hypotheses of one sentence."""
        answers = zip(
            self.score_BN[row].tolist(), self.logp_BN[row].tolist(), self.ids_BNL[row].tolist(), strict=True
        )
        return [
            Hypothesis([token for token in ids if token >= 0], logp, score, None, "eos")
            for score, logp, ids in answers
            if score > -torch.inf
        ]


def search(
    session: Session, limits: Sequence[int], rules: Rules, eos: int | None, early: bool = True
) -> list[list[Hypothesis]]:
    """The best answers of each sentence of the session (one row each), best first.

    Options:
        limits: most tokens of each sentence's answer, the end token counted; at least 1
        early: stop each sentence as soon as its answer is certain; False is for tests
    """
    device, size = session.device, len(limits)
    answers: list[list[Hypothesis]] = [[] for _ in limits]
    number_B = torch.arange(size, device=device)  # which sentence stands where
    limit_B = torch.tensor(limits, device=device)
    alive_BN = torch.zeros(size, 1, dtype=torch.float64, device=device)  # log p
    ids_BNL = torch.empty(size, 1, 0, dtype=torch.int64, device=device)
    none_BN = torch.full((size, rules.nbest), -torch.inf, dtype=torch.float64, device=device)
    pool = Pool(none_BN, none_BN, torch.full((size, rules.nbest, max(limits)), -1, device=device))
    ended_B = torch.zeros(size, dtype=torch.int64, device=device)  # how many have, of each sentence
    enough = torch.inf if rules.patience is None else max(rules.patience * rules.beam, rules.nbest)
    for length in range(1, max(limits) + 1):
        banned = eos if length <= rules.min_length else None
        logp_BC, parent_BC, token_BC = candidates(session.logits_NV, alive_BN, rules.beam, banned)
        ends_BC = torch.zeros_like(token_BC, dtype=torch.bool) if eos is None else token_BC == eos
        if eos is not None:
            ended_BC = logp_BC.masked_fill(~ends_BC, -torch.inf)
            pool.add(ended_BC / penalty(length, rules.alpha), ended_BC, _rows(ids_BNL, parent_BC))
            ended_B += (ended_BC[:, : rules.beam] > -torch.inf).sum(1)
        vocab = session.logits_NV.shape[-1] - (eos is not None)
        width = max(1, min(rules.beam, alive_BN.shape[1] * vocab))
        alive_BN, which_BN = logp_BC.masked_fill(ends_BC, -torch.inf).topk(width, dim=1)
        parent_BN, token_BN = parent_BC.gather(1, which_BN), token_BC.gather(1, which_BN)
        ids_BNL = torch.cat([_rows(ids_BNL, parent_BN), token_BN[..., None]], -1)

        longest_B = ((5 + limit_B.double()) / 6) ** rules.alpha
        hope_B = alive_BN[:, 0] / longest_B
        over_B = (limit_B <= length) | (alive_BN[:, 0] == -torch.inf) | (ended_B >= enough)
        if early:
            over_B |= pool.score_BN[:, -1] >= hope_B
        for place in over_B.nonzero()[:, 0].tolist():
            found = pool.read(place)
            if len(found) < rules.nbest:
                rest = _cut_off(alive_BN[place], ids_BNL[place], rules.alpha)
                found += rest[: rules.nbest - len(found)]
            answers[int(number_B[place])] = found
        stay_B = (~over_B).nonzero()[:, 0]
        if len(stay_B) == 0:
            break
        _move(session, parent_BN, stay_B)
        if len(stay_B) < len(over_B):
            number_B, limit_B, pool = number_B[stay_B], limit_B[stay_B], pool.pick(stay_B)
            ended_B = ended_B[stay_B]
            alive_BN, ids_BNL, token_BN = alive_BN[stay_B], ids_BNL[stay_B], token_BN[stay_B]
        session.step(token_BN.flatten())
    return answers


def candidates(
    logits_NV: Tensor, alive_BN: Tensor, beam: int, banned: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The best 2 * beam continuations of each sentence: (log p, which hypothesis they continue, token).

    The logits are used up: log p is written where they stand.
    """
    logp_NV = torch.log_softmax(logits_NV, -1, out=logits_NV)
    if banned is not None:
        logp_NV[:, banned] = -torch.inf
    count = min(2 * beam, alive_BN.shape[1] * logp_NV.shape[1])
    logp_BC, place_BC = largest(logp_NV.view(*alive_BN.shape, -1), alive_BN, count)
    return logp_BC, place_BC // logp_NV.shape[1], place_BC % logp_NV.shape[1]


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


def _move(session: Session, parent_BN: Tensor, stay_B: Tensor) -> None:
    """Let the session's rows be the alive hypotheses of the sentences that stay."""
    B = len(parent_BN)
    before = len(session.logits_NV) // B
    first_B1 = torch.arange(B, device=parent_BN.device)[:, None] * before
    session.keep((first_B1 + parent_BN)[stay_B].flatten(), stay_B)


def _cut_off(alive_N: Tensor, ids_NL: Tensor, alpha: float) -> list[Hypothesis]:
    over = penalty(ids_NL.shape[-1], alpha)
    rows = zip(alive_N.tolist(), ids_NL.tolist(), strict=True)
    return [Hypothesis(ids, logp, logp / over, None, "length") for logp, ids in rows if logp > -torch.inf]
