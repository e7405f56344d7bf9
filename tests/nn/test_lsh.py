"""LSH attention against the sets and sums of the paper, written as loops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.cache import Cache
from regard.nn.context import Context, How, places, plain_places
from regard.nn.mixer import Lsh
from regard.nn.position import Alibi, Rotary
from regard.nn.recent import Recent

B, H, K = 2, 2, 6
MODES = ("near", "paper", "trax")


def built(length: int = 64, **options: Any) -> Lsh:
    """Queries are so large that the softmax is sharp: a wrong key shows."""
    return Lsh(Dims(width=H * K, heads=H, length=length), **options).double().eval()


def drawn(length: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    qk, v = (torch.randn(B, H, length, K, generator=random, dtype=torch.double) for _ in range(2))
    return (3 * qk).requires_grad_(), v.requires_grad_()


def context(ids_BL: Tensor | None, length: int, how: How = "auto") -> Context:
    if ids_BL is None:
        return Context(plain_places(0, length, torch.device("cpu")), plain=True, how=how)
    return Context(places(ids_BL), how=how)


def sets(mixer: Lsh, bucket_RL: Tensor, pos_L: Tensor) -> list[list[set[int]]]:
    """P_i^r for each round and token, the token itself not in it; tokens are named by their column.

    In trax mode a wrap may meet a key a second time: it is in the list as L + its column.
    """
    R, L = bucket_RL.shape
    real = [t for t in range(L) if pos_L[t] >= 0]
    orders = [sorted(real, key=lambda t: (int(bucket_RL[r, t]), int(pos_L[t]))) for r in range(R)]
    m = mixer.chunk
    found = []
    for r in range(R):
        s = {t: n for n, t in enumerate(orders[r])}
        before = orders[r - 1]
        last = before[(len(real) - 1) // m * m :]
        met: list[set[int]] = []
        for i in range(L):
            mine: set[int] = set()
            for j in real if i in s else ():
                same = bucket_RL[r, i] == bucket_RL[r, j]
                back = s[i] // m - s[j] // m
                if mixer.mode == "near":
                    meets = same and abs(s[i] - s[j]) <= m
                else:
                    meets = back in (0, 1) and (same or mixer.mode == "trax")
                if meets:
                    mine.add(j)
                if mixer.mode == "trax" and s[i] < m and j in last:
                    mine.add(L + j)
            keep = (lambda a, b: a != b) if mixer.both else (lambda a, b: b < a)
            met.append({j for j in mine if keep(int(pos_L[i]), int(pos_L[j % L]))})
        found.append(met)
    return found


def oracle(mixer: Lsh, qk: Tensor, v: Tensor, pos_BL: Tensor) -> Tensor:
    """Eq. 4 to 6: each round by itself, with log N_ij, joined by the rounds' log-sum-exp."""
    bucket_RBHL, L = mixer.hash(qk), qk.shape[2]
    rows = []
    for b in range(B):
        for h in range(H):
            q = qk[b, h]
            k = q / q.norm(dim=-1, keepdim=True)
            rounds = sets(mixer, bucket_RBHL[:, b, h], pos_BL[b if len(pos_BL) > 1 else 0])
            for i in range(L):
                times = [j % L for met in rounds for j in met[i]]
                if not times:
                    rows.append(v[b, h, i])
                    continue
                parts, tops = [], []
                for met in rounds:
                    if not met[i]:
                        continue
                    js = sorted(met[i])
                    often = [1 if mixer.mode == "trax" else times.count(j) for j in js]
                    s = torch.stack([q[i] @ k[j % L] - math.log(n) for j, n in zip(js, often, strict=True)])
                    tops.append(s.logsumexp(0))
                    parts.append((s - tops[-1]).exp() @ v[b, h, [j % L for j in js]])
                z = torch.stack(tops).logsumexp(0)
                rows.append(sum((t - z).exp() * o for t, o in zip(tops, parts, strict=True)))
    return torch.stack(rows).view(B, H, L, K)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rounds,chunk,buckets", [(1, 4, 4), (3, 3, [2, 2]), (2, 64, 2)])
def test_sums_of_the_paper(mode: str, both: bool, rounds: int, chunk: int, buckets: Any) -> None:
    """Sorted and pair by pair, padded and not: the union of the rounds with log N_ij, gradients too."""
    mixer = built(rounds=rounds, chunk=chunk, buckets=buckets, mode=mode, both=both)
    ids_BL = torch.ones(B, 14, dtype=torch.long)
    ids_BL[1, :3], ids_BL[1, 6], ids_BL[1, -1] = -1, -3, -1
    for ids in (None, ids_BL):
        qk, v = drawn(14)
        real = torch.ones(B, 1, 14, 1) if ids is None else (ids >= 0)[:, None, :, None]
        weight = torch.randn(B, H, 14, K, generator=torch.Generator().manual_seed(3)).double() * real
        wanted = oracle(mixer, qk, v, context(ids, 14).pos_BL) * real
        slopes = torch.autograd.grad((wanted * weight).sum(), (qk, v))
        hows: tuple[How, ...] = ("blockwise", "explicit", "fused")
        for how in hows:
            y = mixer.look(qk, v, context(ids, 14, how)) * real
            assert (y - wanted).abs().max() < 1e-9
            for got, slope in zip(torch.autograd.grad((y * weight).sum(), (qk, v)), slopes, strict=True):
                assert (got - slope).abs().max() < 1e-9


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("both", [False, True])
def test_one_bucket_in_one_chunk_is_full_attention_with_shared_queries(mode: str, both: bool) -> None:
    mixer = built(rounds=2, chunk=32, buckets=2, mode=mode, both=both)
    mixer.rotation_RKF = torch.zeros_like(mixer.rotation_RKF)  # one bucket for all
    qk, v = drawn(20)
    s = qk @ F.normalize(qk, dim=-1).mT - 1e5 * torch.eye(20)
    s = s if both else s.masked_fill(torch.ones(20, 20).triu(1).bool(), float("-inf"))
    for how in ("blockwise", "explicit"):
        assert (mixer.look(qk, v, context(None, 20, how)) - s.softmax(-1) @ v).abs().max() < 1e-9  # type: ignore[arg-type]


def test_only_the_direction_is_hashed() -> None:
    mixer, (qk, _) = built(rounds=3, buckets=[4, 8]), drawn(50)
    bucket = mixer.hash(qk)
    assert torch.equal(bucket, mixer.hash(1e3 * qk)) and torch.equal(bucket, mixer.hash(0.01 * qk))
    assert bucket.min() >= 0 and bucket.max() < 32 and len(bucket.unique()) > 16
    assert not torch.equal(bucket[0], bucket[1])
    turned = built(rounds=3, buckets=6).hash(qk)
    assert torch.equal((turned + 3) % 6, built(rounds=3, buckets=6).hash(-qk)), "the opposite bucket"


@pytest.mark.parametrize("degrees", [10, 45, 90, 150])
def test_near_vectors_share_a_bucket_more_often(degrees: int) -> None:
    """How often two vectors at an angle collide: as often as in a simulation of the definition."""
    angle, count, buckets = math.radians(degrees), 2000, 8
    pair = torch.zeros(1, 1, 2, K).double()
    pair[..., 0, 0], pair[..., 1, 0], pair[..., 1, 1] = 1, math.cos(angle), math.sin(angle)
    drawn = [built(rounds=100, buckets=buckets, seed=n).hash(pair) for n in range(count // 100)]
    bucket = torch.cat(drawn)[:, 0, 0]
    mine = (bucket[:, 0] == bucket[:, 1]).double().mean()
    # only the two coordinates that the pair spans matter: independent normals, correlated by the angle
    a, b = torch.randn(2, 50_000, buckets // 2, generator=torch.Generator().manual_seed(1)).double()
    b = math.cos(angle) * a + math.sin(angle) * b
    hit = (a.abs().argmax(-1) == b.abs().argmax(-1)) & (
        a.gather(-1, a.abs().argmax(-1, keepdim=True)) * b.gather(-1, a.abs().argmax(-1, keepdim=True)) > 0
    ).squeeze(-1)
    assert (mine - hit.double().mean()).abs() < 4 * 0.5 / count**0.5


def test_hashes_are_drawn_anew_in_training_only() -> None:
    mixer, (qk, _) = built(rounds=2, buckets=8), drawn(40)
    assert torch.equal(mixer.hash(qk), built(rounds=2, buckets=8).hash(qk))
    assert torch.equal(mixer.hash(qk), built(rounds=5, buckets=8).hash(qk)[:2]), "more rounds, the same first"
    assert not torch.equal(mixer.hash(qk), built(rounds=2, buckets=8, seed=1).hash(qk))
    torch.manual_seed(0)
    first = mixer.hash(qk, fresh=True)
    assert not torch.equal(first, mixer.hash(qk, fresh=True))
    torch.manual_seed(0)
    assert torch.equal(first, mixer.hash(qk, fresh=True))


def test_near_keeps_its_set_when_the_sequence_grows() -> None:
    """Also where tokens are sorted: later tokens have no gradient, and change nothing."""
    mixer, (qk, v) = built(rounds=2, chunk=4, buckets=4), drawn(40)
    y = mixer.look(qk, v, context(None, 40, "blockwise"))
    for at in (1, 7, 22):
        some = mixer.look(qk[:, :, :at], v[:, :, :at], context(None, at, "blockwise"))
        assert (some - y[:, :, :at]).abs().max() < 1e-12
    for slope in torch.autograd.grad(y[:, :, :30].square().sum(), (qk, v)):
        assert not slope[:, :, 30:].any() and slope[:, :, :30].any()


def test_paper_does_not_which_is_why_it_has_no_cache() -> None:
    mixer, (qk, v) = built(rounds=1, chunk=4, buckets=4, mode="paper"), drawn(40)
    y = mixer.look(qk, v, context(None, 40))
    some = mixer.look(qk[:, :, :30], v[:, :, :30], context(None, 30))
    assert (some - y[:, :, :30]).abs().max() > 0.1
    cache = Cache(B)
    cache.begin(context(None, 40).pos_BL, True)
    for changes in ({"mode": "paper"}, {"mode": "trax"}, {"both": True}):
        with pytest.raises(UsageError, match=r"has no cache; build it with mode='near' and both=False"):
            built(chunk=4, **changes).look(qk, v, context(None, 40).but(cache=cache))


def test_a_long_prompt_is_sorted_and_goes_on_from_the_cache() -> None:
    mixer, (qk, v) = built(rounds=2, chunk=3, buckets=4), drawn(40)
    whole = mixer.look(qk, v, context(None, 40))
    for cache, bound in ((Cache(B), 1e-12), (Cache(B, precision="int8"), 0.1)):  # buckets are never rounded
        got = []
        for a, b in ((0, 30), (30, 31), (31, 38), (38, 40)):
            pos_BL = plain_places(a, b - a, torch.device("cpu"))
            cache.begin(pos_BL, True)
            got.append(mixer.look(qk[:, :, a:b], v[:, :, a:b], Context(pos_BL, True, cache=cache)))
        assert (torch.cat(got, 2) - whole).abs().max() < bound


def test_memory_over_segments() -> None:
    """While weights stand still, segments that remember all before them answer as one pass."""
    mixer, (qk, v) = built(rounds=2, chunk=3, buckets=4), drawn(24)
    whole, cache, got = mixer.look(qk, v, context(None, 24)), Recent(B), []
    for a in (0, 8, 16):
        pos_BL = plain_places(a, 8, torch.device("cpu"))
        cache.begin(pos_BL, True)
        got.append(mixer.look(qk[:, :, a : a + 8], v[:, :, a : a + 8], Context(pos_BL, True, cache=cache)))
        cache.put(cache.take())
    assert (torch.cat(got, 2) - whole).abs().max() < 1e-12
    states = Recent(B, states=True)
    states.begin(context(None, 24).pos_BL, True)
    with pytest.raises(UsageError, match="train without `memory`"):
        mixer.look(qk, v, context(None, 24).but(cache=states))


def test_rotary_turns_after_the_hash_and_biases_are_refused() -> None:
    dims, (qk, v) = Dims(width=H * K, heads=H), drawn(20)
    mixer, ctx = built(chunk=2), context(None, 20)
    rotary = Rotary(dims).double()
    y = mixer.look(qk, v, ctx.but(position=rotary, how="blockwise"))
    assert (y - mixer.look(qk, v, ctx.but(position=rotary, how="explicit"))).abs().max() < 1e-9
    assert (y - mixer.look(qk, v, ctx.but(how="explicit"))).abs().max() > 1e-3
    with pytest.raises(UsageError, match="Alibi changes scores or values; take another"):
        mixer.look(qk, v, ctx.but(position=Alibi(dims)))


def test_what_cannot_be_built() -> None:
    for options in ({"buckets": 3}, {"buckets": [4, 5]}, {"buckets": []}, {"buckets": 0}):
        with pytest.raises(UsageError, match="buckets must be even"):
            built(**options)
    with pytest.raises(UsageError, match="1 to 100 rounds"):
        built(rounds=0)
    assert built(length=1024, chunk=64).factors == [32]
    assert built(length=16384, chunk=64).factors == [16, 32]
