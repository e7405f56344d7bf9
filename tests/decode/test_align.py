"""Where the model looked while it wrote."""

from __future__ import annotations

import pytest
import torch

from regard.decode import Rules, align
from regard.errors import UsageError
from tests.decode.asked import START, Make


@pytest.mark.parametrize("system", ["vanilla", "t5"])
def test_rows_belong_to_the_tokens_written(make: Make) -> None:
    asked = make(count=4)
    assert asked.sources is not None
    source = asked.sources[3]
    target = asked.part([3]).answers(Rules(length=6), eos=None)[0][0].ids
    weights = align(asked.model, source, target, [START])
    assert weights.shape == (6, 4)
    torch.testing.assert_close(weights.sum(1), torch.ones(6))
    tape: dict[str, torch.Tensor] = {}
    asked.model(torch.tensor([source]), torch.tensor([[START, *target]]), tape=tape)
    for layer in (0, 1, -1):
        expected = tape[f"decoder/{layer % 2}/cross"][0].mean(0)[:6]
        torch.testing.assert_close(align(asked.model, source, target, [START], layer), expected.detach())
    # the row of a token is fixed before the token itself is read
    other = align(asked.model, source, [*target[:-1], (target[-1] + 1) % 11], [START])
    torch.testing.assert_close(other, weights)


@pytest.mark.parametrize("system", ["vanilla"])
def test_a_longer_start_is_not_part_of_the_answer(make: Make) -> None:
    asked = make(count=1)
    both = align(asked.model, [3, 4], [5, 6, 7], [START])
    torch.testing.assert_close(align(asked.model, [3, 4], [6, 7], [START, 5]), both[1:])
    assert align(asked.model, [3, 4], [], [START]).shape == (0, 2)


def test_refused(make: Make) -> None:
    asked = make(count=1)
    if asked.sources is None:
        with pytest.raises(UsageError, match="cross-attention"):
            align(asked.model, [3], [4], [START])
    else:
        with pytest.raises(UsageError, match="layer must be one of 2 layers"):
            align(asked.model, [3], [4], [START], layer=2)
