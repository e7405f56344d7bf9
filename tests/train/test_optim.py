"""Which parameter is given to which optimizer, with what decay."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.spec import kinds, read
from regard.train.optim import Adafactor, Adamw, Muon, Optimizer, is_hidden, set_lr
from tests.train.toy import recipe


def named(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    return list(model.named_parameters())


def test_only_matrices_decay() -> None:
    model = regard.build(recipe())
    (optimizer,) = Adamw(decay=0.3).make(named(model))
    decayed = {id(p) for g in optimizer.param_groups if g["weight_decay"] == 0.3 for p in g["params"]}
    plain = {id(p) for g in optimizer.param_groups if g["weight_decay"] == 0.0 for p in g["params"]}
    assert decayed == {id(p) for p in model.parameters() if p.ndim >= 2}
    assert plain == {id(p) for p in model.parameters() if p.ndim < 2}
    (everything,) = Adamw(decay=0.3, decays="all").make(named(model))
    assert [g["weight_decay"] for g in everything.param_groups] == [0.3]


def test_one_step_of_adamw_is_the_formula() -> None:
    weight = torch.nn.Parameter(torch.tensor([[1.0, -2.0]]))
    (optimizer,) = Adamw(betas=(0.9, 0.98), eps=1e-9, decay=0.1).make([("w", weight)])
    set_lr([optimizer], 0.01)
    weight.grad = torch.tensor([[0.5, -0.25]])
    optimizer.step()
    # after one step the corrected averages are g and g^2: an update of lr in the direction of the sign
    expected = torch.tensor([[1.0 - 0.01 * (1 + 0.1), -2.0 + 0.01 * (1 + 0.2)]])
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-6, atol=1e-7)


def test_muon_takes_hidden_matrices_only() -> None:
    model = regard.build(recipe())
    muon, adamw = Muon().make(named(model))
    in_muon = {id(p) for g in muon.param_groups for p in g["params"]}
    in_adamw = {id(p) for g in adamw.param_groups for p in g["params"]}
    assert in_muon | in_adamw == {id(p) for p in model.parameters()}
    assert not in_muon & in_adamw
    for name, parameter in named(model):
        assert (id(parameter) in in_muon) == ("blocks" in name and parameter.ndim == 2), name
    assert not is_hidden("embed.weight", torch.zeros(3, 3))
    assert not is_hidden("stack.position.weight", torch.zeros(3, 3))


def test_muon_makes_updates_orthogonal_and_of_adamws_size() -> None:
    weight = torch.nn.Parameter(torch.zeros(16, 48))
    (muon,) = Muon(decay=0.0).make([("blocks.0.weight", weight)])
    set_lr([muon], 1.0)
    weight.grad = torch.randn(16, 48, generator=torch.Generator().manual_seed(1)) * 1e3
    muon.step()
    scaled = weight.detach() / (0.2 * 48**0.5)
    singular = torch.linalg.svdvals(scaled)
    assert float(singular.min()) > 0.6 and float(singular.max()) < 1.3  # Newton-Schulz is rough on purpose


@pytest.mark.parametrize("kind", ["adamw", "adafactor", "muon"])
def test_every_optimizer_learns(kind: str) -> None:
    assert sorted(kinds(Optimizer)) == ["adafactor", "adamw", "muon"]
    model = regard.build(recipe(dropout=0.0))
    optimizers = read(Optimizer, kind).build().make(named(model))
    set_lr(optimizers, 0.1 if kind == "adafactor" else 0.02)  # relative to the weights in the one
    ids = (torch.arange(12) + torch.arange(8)[:, None]) % 11
    losses = []
    for _ in range(60):
        loss = model.head.loss(model.states(ids[:, :-1]), ids[:, 1:]) / ids[:, 1:].numel()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[0] > 2.2 and losses[-1] < 0.8


def test_adafactor_keeps_rows_and_columns_only() -> None:
    weight = torch.nn.Parameter(torch.ones(6, 9))
    (optimizer,) = Adafactor().make([("w", weight)])
    weight.grad = torch.ones(6, 9)
    optimizer.step()
    kept = sum(v.numel() for v in optimizer.state[weight].values() if v.ndim)
    assert kept == 6 + 9
