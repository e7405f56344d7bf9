"""The duplication task of the Reformer paper, small: learned with hashes, asked with fewer.

Kitaev et al. 2020, section 4 and table 2, https://arxiv.org/abs/2001.04451: a sequence 0w0w, of which the
second half is to be said. One model learns with full attention (queries and keys shared), one with 4 rounds
of hashes; each is then asked with full attention and with 8, 4, 2 and 1 rounds.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from regard.model import Model
from regard.nn.context import Context
from regard.nn.mixer import Lsh
from regard.nn.position import Learned

pytestmark = pytest.mark.prove

WORD, SYMBOLS, STEPS = 31, 31, 800
FULL, ITSELF = 0, -1  # in place of rounds: all tokens in one bucket; all tokens, and each sees itself too
ASKED = (FULL, 8, 4, 2, 1, ITSELF)
Row = dict[int, float]


def built(rounds: int) -> Model:
    """One layer, 8 buckets and chunks of 16, or no hash at all."""
    length = 2 * (WORD + 1)
    options: dict[str, Any] = {"width": 128, "heads": 4, "layers": 1, "hidden": 128, "length": length}
    options |= {"vocab": SYMBOLS + 1, "buckets": 8, "chunk": 16 if rounds > 0 else length}
    options["position"] = regard.of(Learned)  # 31 places back is no straight step on axial tables
    model = regard.build(regard.system("reformer", **options, rounds=max(rounds, 1)))
    for mixer in (m for m in model.modules() if isinstance(m, Lsh)):
        if rounds == FULL:
            mixer.hash = _one_bucket  # type: ignore[method-assign]
        if rounds == ITSELF:
            mixer.look = _with_itself  # type: ignore[method-assign]
    return model


def _one_bucket(x_BHLK: Tensor, fresh: bool = False) -> Tensor:
    return torch.zeros(1, *x_BHLK.shape[:3], dtype=torch.long)


def _with_itself(qk_BHLK: Tensor, v_BHLK: Tensor, ctx: Context) -> Tensor:
    k_BHLK = F.normalize(qk_BHLK, dim=-1)
    return F.scaled_dot_product_attention(qk_BHLK, k_BHLK, v_BHLK, is_causal=True, scale=1.0)


def drawn(batch: int, random: torch.Generator) -> Tensor:
    """0w0w."""
    half_BL = torch.randint(1, SYMBOLS + 1, (batch, WORD + 1), generator=random)
    half_BL[:, 0] = 0
    return half_BL.repeat(1, 2)


def learned(rounds: int, steps: int = STEPS, lr: float = 3e-3) -> Model:
    """Trained on the second half; hashes are drawn anew in every step."""
    torch.manual_seed(0)
    model, random = built(rounds).train(), torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, step / 200) * (0.51 + 0.49 * math.cos(math.pi * step / steps))
        ids_BL = drawn(32, random)
        y_BLV = model(ids_BL)[:, WORD + 1 : -1]
        loss = F.cross_entropy(y_BLV.flatten(0, 1), ids_BL[:, WORD + 2 :].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def asked(model: Model, rounds: int, batch: int = 256) -> float:
    """Percent of the second half that are right."""
    other = built(rounds).eval()
    other.load_state_dict(model.state_dict())
    ids_BL = drawn(batch, torch.Generator().manual_seed(2))
    with torch.no_grad():
        best_BL = other(ids_BL)[:, WORD + 1 : -1].argmax(-1)
    return 100 * float((best_BL == ids_BL[:, WORD + 2 :]).double().mean())


def shape_of_the_paper(full: Row, hashed: Row) -> bool:
    """Fewer rounds lose more, the more so for who never learned with hashes."""
    falls = hashed[8] >= hashed[4] >= hashed[2] >= hashed[1]
    fewer = full[1] <= full[FULL] - 10 and hashed[1] <= hashed[8] - 2 and full[1] < hashed[1]
    return full[FULL] >= 99 and hashed[8] >= 98 and falls and fewer


def test_cross_table() -> None:
    """Also: a token that may see itself sees nothing else, since no key is nearer to it than its own.

    Who learned with hashes is at chance then, as under full attention in the paper's table (0.8 %). Where a
    token does not see itself, full attention loses nothing at this size: calibrated with reformer-pytorch
    1.4.4 in the same model, 8 buckets: full 100 99.9 99.8 95.4 85.2, 4 rounds 100 100 100 99.1 85.8.
    """
    full, hashed = ({rounds: asked(model, rounds) for rounds in ASKED} for model in map(learned, (FULL, 4)))
    print(f"\nfull   {full}\nhashed {hashed}")
    assert shape_of_the_paper(full, hashed)
    assert hashed[ITSELF] <= hashed[8] - 30
    # the twin: hashes that are none, all tokens in one bucket whatever the rounds
    fake = dict.fromkeys(ASKED, full[FULL])
    assert not shape_of_the_paper(fake, fake)
