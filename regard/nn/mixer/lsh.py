"""Attention among tokens that fall into the same bucket of a hash."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.attend import attend
from regard.nn.context import Context
from regard.nn.mixer.mixer import Mixer
from regard.nn.pattern import Pattern
from regard.nn.position import Position
from regard.nn.product import Linear
from regard.nn.rounds import NOBODY, Rounds, in_rounds
from regard.nn.score import Dot
from regard.spec import part

Mode = Literal["near", "paper", "trax"]


@part
class Lsh(Mixer):
    r"""Tokens that point the same way are likely to fall into the same bucket; each looks only in its own.

        o_i = sum_{j in P_i} exp(q_i . k_j - z_i) v_j,   k_j = q_j / |q_j|,   P_i = P_i^1 u ... u P_i^R
        h^r(x) = argmax([x R_r; -x R_r]),   P_i^r = {j < i : h^r(q_j) = h^r(q_i), j in a chunk near i}

    Kitaev et al. 2020 (Reformer), section 2, https://arxiv.org/abs/2001.04451. Queries and keys are one
    matrix; a token does not look at itself unless it meets nobody else. Keys have length 1 and there is no
    further 1 / sqrt(K), as in the authors' code (google/trax). In each round, tokens are sorted by bucket and
    position, so that time and memory grow with rounds x length x chunk. Which keys are near is the mode:

    near   the `chunk` tokens of its bucket just before it (and after it, if `both`). What comes later never
           changes this set: the only mode that decoders can keep in a cache
    paper  its own chunk of the sorted list and the one before it, where these are of its bucket
    trax   all of both chunks, whatever their buckets; the first chunk looks back at the last one of the
           round before, and a key that is met in several rounds counts as often

    In `paper` and `trax`, where chunks begin depends on the tokens that come later, as in the paper: what a
    token may see is not known before the sequence is complete, so that there is no cached step that equals
    training. Both refuse a cache.

    In training, R_r is drawn for each call from torch's own generator, as dropout is: a reversible stack
    that puts the generator back meets the same hashes in its backward pass. Otherwise it is fixed by `seed`,
    so that answers can be repeated and cached steps meet the same buckets. All rows, heads and layers share
    it; their queries differ.

    Differs from the paper: the number of buckets follows dims.length and not the sequence at hand, so that a
    sequence that grows keeps its buckets. Sequences of at most 2 x rounds x chunk tokens are looked at pair
    by pair, since that costs less than sorting.

    Options:
      rounds: R, how many hashes
      chunk: tokens in a chunk
      buckets: how many, an even number; a list: the hash is one of each, as many buckets as their product;
        if not given, 2 x length / chunk, in two factors if many
      mode: near, paper or trax
      both: look ahead too (encoders)
      bias: on the projections
      seed: of the hashes outside training
    """

    rotation_RKF: Tensor

    def __init__(
        self,
        dims: Dims,
        rounds: int = 2,
        chunk: int = 64,
        buckets: int | list[int] | None = None,
        mode: Mode = "near",
        both: bool = False,
        bias: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not 1 <= rounds <= 100 or chunk < 1:
            raise UsageError(
                f"LSH needs 1 to 100 rounds and chunks of at least 1 token, but rounds is {rounds} and chunk "
                f"{chunk}."
            )
        self.factors = _factors(buckets, 2 * -(-dims.length // chunk))
        self.heads, self.size, self.rounds, self.chunk = dims.heads, dims.size, rounds, chunk
        self.mode, self.both = mode, both
        self.qkv = Linear(dims.width, 2 * self.heads * self.size, bias=bias)
        self.out = Linear(self.heads * self.size, dims.width, bias=bias)
        self.score = Dot(dims, scale=1.0)
        random = torch.Generator().manual_seed(seed)  # round after round: more rounds begin with the same
        rotation_RKF = torch.randn(rounds, self.size, sum(self.factors) // 2, generator=random)
        self.register_buffer("rotation_RKF", rotation_RKF, persistent=False)

    @property
    def causal(self) -> bool:
        """What comes later changes nothing before it."""
        return self.mode == "near" and not self.both

    def meet(self, position: Position) -> None:
        """Refuse a position that needs all heads in the same order."""
        if position.biased or position.valued:
            raise UsageError(
                "LSH sorts tokens anew in each head, so positions must be added to the input or turn "
                f"queries, but {type(position).__name__} changes scores or values; take another."
            )

    def forward(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        """Ask, look into the buckets, answer."""
        qk_BHLK, v_BHLK = self.qkv(x_BLD).unflatten(-1, (-1, self.size)).transpose(1, 2).chunk(2, 1)
        return self.out(self.look(qk_BHLK, v_BHLK, ctx).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def look(self, qk_BHLK: Tensor, v_BHLK: Tensor, ctx: Context) -> Tensor:
        """What each token reads, between the projections."""
        bucket_RBHL = self.hash(qk_BHLK, fresh=self.training and ctx.cache is None)
        q_BHLK = k_BHLK = qk_BHLK
        if ctx.position is not None:
            self.meet(ctx.position)
            q_BHLK, k_BHLK = ctx.position.turn(qk_BHLK, qk_BHLK, ctx.pos_BL)
        k_BHLK = F.normalize(k_BHLK, dim=-1)
        if ctx.cache is not None:
            k_BHMK, v_BHMK, bucket_RBHM, j_BM = self._remember(k_BHLK, v_BHLK, bucket_RBHL, ctx)
            if ctx.cache.length > qk_BHLK.shape[2]:  # there were tokens before
                count_BHLM = self._recount(bucket_RBHL, bucket_RBHM, ctx.pos_BL, j_BM)
                return self._each(q_BHLK, k_BHMK, v_BHMK, count_BHLM, j_BM, ctx)
        rounds = self._sorted(bucket_RBHL, ctx.pos_BL)
        short = ctx.how == "auto" and qk_BHLK.shape[2] <= 2 * self.rounds * self.chunk
        if short or ctx.tape is not None or ctx.how in ("explicit", "fused"):
            count_BHLM = rounds.met().unflatten(0, qk_BHLK.shape[:2])
            return self._each(q_BHLK, k_BHLK, v_BHLK, count_BHLM, ctx.pos_BL, ctx)
        y_NLK = in_rounds(q_BHLK.flatten(0, 1), k_BHLK.flatten(0, 1), v_BHLK.flatten(0, 1), rounds)
        return y_NLK.unflatten(0, qk_BHLK.shape[:2])  # type: ignore[no-any-return]

    def hash(self, x_BHLK: Tensor, fresh: bool = False) -> Tensor:
        """The bucket of each vector in each round; its length does not matter. Never in half precision."""
        rotation_RKF = torch.randn_like(self.rotation_RKF) if fresh else self.rotation_RKF
        x_BHLK, found = x_BHLK.detach().to(torch.promote_types(x_BHLK.dtype, torch.float32)), list[Tensor]()
        with torch.autocast(x_BHLK.device.type, enabled=False):
            for rotation_KF in rotation_RKF.to(x_BHLK.dtype):
                turned = (x_BHLK @ rotation_KF).split([count // 2 for count in self.factors], -1)
                bucket_BHL = torch.zeros((), dtype=torch.long, device=x_BHLK.device)
                for count, x_BHLF in zip(self.factors, turned, strict=True):
                    bucket_BHL = bucket_BHL * count + torch.cat([x_BHLF, -x_BHLF], -1).argmax(-1)
                found.append(bucket_BHL)
        return torch.stack(found)

    def _sorted(self, bucket_RBHL: Tensor, pos_BL: Tensor) -> Rounds:
        """Tokens sorted by bucket and position, padding last, in a bucket of its own."""
        _, B, H, L = bucket_RBHL.shape
        pos_NL = pos_BL.expand(B, L).repeat_interleave(H, 0)
        bucket_RNL = bucket_RBHL.flatten(1, 2).masked_fill(pos_NL < 0, math.prod(self.factors)).int()
        order_RNL = bucket_RNL.argsort(dim=-1, stable=True)
        place_RNL = torch.arange(L, device=order_RNL.device).expand(order_RNL.shape)
        rank_RNL = torch.empty_like(order_RNL).scatter_(-1, order_RNL, place_RNL)
        if self.mode == "near":  # places within a bucket; buckets are more than a chunk apart
            code_RNL, low, high = rank_RNL + (self.chunk + 1) * bucket_RNL, 1, self.chunk
            low = -high if self.both else low
        else:  # the number of the chunk; in `paper`, buckets are more than one chunk apart
            code_RNL, low, high = rank_RNL // self.chunk, 0, 1
            code_RNL = code_RNL + 2 * bucket_RNL if self.mode == "paper" else code_RNL
        code_RNL = code_RNL.masked_fill(pos_NL < 0, NOBODY).int()
        trax, after = self.mode == "trax", self.mode == "near" and self.both
        return Rounds(
            rank_RNL, code_RNL, pos_NL, self.chunk, low, high, self.both, after, circle=trax, repeat=trax
        )

    def _remember(
        self, k_BHLK: Tensor, v_BHLK: Tensor, bucket_RBHL: Tensor, ctx: Context
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Keys, values and buckets of all tokens so far, and their positions."""
        assert ctx.cache is not None
        if not self.causal:
            what = "that looks ahead" if self.both else f"of mode {self.mode!r}"
            raise UsageError(
                f"What a token may see in an LSH attention {what} depends on later tokens, so the one at "
                f"{ctx.path!r} has no cache; build it with mode='near' and both=False."
            )
        if ctx.cache.states:
            raise UsageError(
                f"The LSH attention at {ctx.path!r} keeps keys and their buckets, not what it read, so no "
                "memory can be carried through its training; train without `memory`."
            )
        k_BHMK, v_BHMK, j_BM = ctx.cache.extend(ctx.path, k_BHLK, v_BHLK)
        bucket_BHLR = bucket_RBHL.permute(1, 2, 3, 0).int()
        bucket_BHMR, _, _ = ctx.cache.extend(f"{ctx.path}.buckets", bucket_BHLR, bucket_BHLR[..., :0])
        return k_BHMK, v_BHMK, bucket_BHMR.permute(3, 0, 1, 2), j_BM

    def _recount(self, bucket_RBHL: Tensor, bucket_RBHM: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        """Whether j is of the `chunk` tokens before i of its bucket in any round; columns are sorted."""
        i, j = i_BL[:, None, :, None], j_BM[:, None, None, :]
        count_BHLM = torch.zeros((), dtype=torch.bool, device=j.device)
        for mine_BHL, theirs_BHM in zip(bucket_RBHL, bucket_RBHM, strict=True):
            same_BHLM = (mine_BHL[..., :, None] == theirs_BHM[..., None, :]) & (j >= 0) & (j < i)
            back_BHLM = same_BHLM.sum(-1, keepdim=True) - same_BHLM.cumsum(-1)
            count_BHLM = count_BHLM | (same_BHLM & (back_BHLM < self.chunk))
        return count_BHLM

    def _each(
        self, q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, count_BHLM: Tensor, j_BM: Tensor, ctx: Context
    ) -> Tensor:
        """Pair by pair: who is met counts as often as it is met; who meets nobody sees itself."""
        met_BHLM = count_BHLM > 0
        itself_B1LM = ctx.pos_BL[:, None, :, None] == j_BM[:, None, None, :]
        seen = _Met(met_BHLM | (itself_B1LM & ~met_BHLM.any(-1, keepdim=True)))
        often = _Often(count_BHLM.clamp(min=1).to(q_BHLK.dtype).log()) if self.mode == "trax" else None
        ctx = ctx.but(how="auto" if ctx.how == "blockwise" else ctx.how)
        # a new view of the positions: what is seen differs from layer to layer, and no mask may be shared
        return attend(q_BHLK, k_BHMK, v_BHMK, j_BM[:], ctx, score=self.score, pattern=seen, position=often)


class _Met(Pattern):
    """The pairs that met in this call."""

    def __init__(self, allow_BHLM: Tensor) -> None:
        self.allow_BHLM = allow_BHLM

    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        return self.allow_BHLM

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class _Often(Position):
    """A key that is met n times has n times the weight: + log n."""

    biased = True

    def __init__(self, log_BHLM: Tensor) -> None:
        super().__init__()
        self.log_BHLM = log_BHLM

    def bias(self, q_BHLK: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        """Log n."""
        return self.log_BHLM


def _factors(buckets: int | list[int] | None, usual: int) -> list[int]:
    """How many buckets each part of the hash has."""
    if buckets is None:
        power = math.ceil(math.log2(usual))
        return [2**power] if power <= 6 else [2 ** (power // 2), 2 ** (power - power // 2)]
    factors = buckets if isinstance(buckets, list) else [buckets]
    if not factors or any(count < 2 or count % 2 for count in factors):
        raise UsageError(f"Every vector has an opposite, so buckets must be even numbers, but are {buckets}.")
    return factors
