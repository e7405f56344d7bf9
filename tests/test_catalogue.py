"""Every law of every part and every system. Registering is being tested: nothing here is listed by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from torch import Tensor, nn

import regard.laws.attention
import regard.laws.writers
from regard import spec
from regard.dims import Dims
from regard.errors import CheckFailed
from regard.laws import Claim, Row, claims, prove, table
from regard.laws.subjects import FAMILIES, host, hosts, lively, parts, positions, systems
from regard.model import Encoder, Model, build
from regard.nn.context import Context
from regard.nn.ffn import FFN
from regard.nn.position import Position
from regard.spec import PARTS, kinds, of
from regard.systems import SYSTEMS

CLAIMS = claims()


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.law}-{claim.subject}")
def test_law(claim: Claim, record_property: Callable[[str, object], None]) -> None:
    """Every case of every claim is within its bound."""
    cases = dict(claim.cases())
    worst = max(cases, key=lambda case: cases[case])
    record_property("figure", cases[worst])
    assert cases[worst] <= claim.bound, worst


def test_every_part_and_every_system_is_claimed() -> None:
    subjects = {claim.subject for claim in CLAIMS}
    assert set(SYSTEMS) <= subjects
    for part in parts():
        assert any(subject.endswith(f" {spec.kind_of(part)}") for subject in subjects), part
    models = {recipe.make for members in systems().values() for recipe in members.values()}
    assert set(kinds(Model).values()) == models, "a kind of model that no system is made of is never tried"


def test_bars_of_the_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grids hold every combination that is promised: none is skipped."""
    for law in ("ways_agree", "flex_agrees"):
        monkeypatch.setattr(regard.laws.attention, law, lambda *given: 0.0)
    for law in ("decode_equals_forward", "beams_equal_forward", "rollback_equals_forward"):
        monkeypatch.setattr(regard.laws.writers, law, lambda *given: 0.0)
    found = {(c.law, c.subject): c for c in CLAIMS}
    assert {name.split()[0] for name in positions()} == {"none", *kinds(Position)}
    names = [name for name, _ in found["decoding", "alibi"].cases()]
    for pattern in ("causal", "window", "prefix"):
        for group in ("MHA", "GQA", "MQA"):
            for cache in ("growing", "static"):
                for feed in ("by 1", "by 3", "by 7", "by 18", "plain", "beams", "rollback"):
                    assert f"{pattern}, {group}, {cache}, {feed}" in names
    names = [name for name, _ in found["kernels", "none"].cases()]
    for pattern in ("full", "causal", "window", "window both", "prefix", "all_of", "any_of", "per_head"):
        for group in ("MHA", "GQA", "MQA"):
            for pads in ("plain", "left", "right", "middle"):
                assert f"{pattern}, {group}, {pads}" in names
    for name, members in systems().items():
        writes = any(recipe.make is not Encoder for recipe in members.values())
        needed = {"stepwise", "beams", "rollback", "future", "bytes"} if writes else set()
        assert needed | {"learns", "written", "seeded", "saved", "ways", "padding"} <= {
            law for law, subject in found if subject == name
        }


def test_a_new_part_is_tried_without_being_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A feed-forward layer that looks at the token after it is caught by laws that were never told of it."""

    class Peeking(FFN):
        """Leaks by one."""

        def __init__(self, dims: Dims) -> None:
            super().__init__()
            self.down = nn.Linear(dims.width, dims.width)

        def forward(self, x_BLD: Tensor, ctx: Context) -> Tensor:
            return x_BLD + self.down(x_BLD.roll(-1, 1))

    monkeypatch.setattr(spec, "PARTS", [*PARTS, Peeking])
    monkeypatch.setattr("regard.laws.subjects.PARTS", [*PARTS, Peeking])
    rows = prove(["ffn peeking"])
    broken = {row.law for row in rows if not row.ok}
    assert {"future", "stepwise", "padding"} <= broken
    assert "learns" not in broken and "saved" not in broken


def test_a_family_without_a_place_is_refused() -> None:
    class Compress:
        def __init__(self, dims: Dims) -> None: ...

    with pytest.raises(CheckFailed, match="'compress' has none: say in regard/laws/subjects"):
        host(of(Compress))


@pytest.mark.parametrize("part", parts(), ids=spec.kind_of)
def test_variants_differ(part: type) -> None:
    """Each variant is a recipe of its own, and what was changed is in it."""
    members = hosts(part)
    seen = [spec.write(recipe) for recipe in members.values()]
    assert all(a != b for n, a in enumerate(seen) for b in seen[:n])


def test_lively_weights_are_large_and_leave_no_bias_at_zero() -> None:
    model = lively(systems()["bert"][""])
    for name, p in model.named_parameters():
        assert p.std() > 0.05 and p.abs().max() > 0.3, name
    newborn = build(systems()["bert"][""])
    assert any(not p.any() for p in newborn.parameters()), "else there would be nothing to enliven"


def test_a_row_keeps_what_went_wrong() -> None:
    def bad() -> Iterator[tuple[str, float]]:
        yield "fine", 0.0
        raise RuntimeError("boom")

    assert Claim("l", "s", 1.0, bad).row() == Row("l", "s", float("inf"), 1.0, False, 1, "RuntimeError: boom")
    assert not Claim("l", "s", 1.0, lambda: iter([])).row().ok, "a claim that tries nothing proves nothing"
    nan = Claim("l", "s", 1.0, lambda: iter([("a", 0.5), ("b", float("nan"))])).row()
    assert not nan.ok and nan.worst == "b"


def test_the_table_says_what_is_broken() -> None:
    rows = [
        Row("future", "gpt", 0.0, 0.0, True, 3, "x"),
        Row("padding", "gpt", 0.25, 1e-4, False, 2, "left"),
        Row("future", "ffn dense", 3e-7, 1e-6, True, 1, ""),
        Row("kernels", "rotary", 1e-6, 1e-5, True, 108, ""),
    ]
    page = table(rows)
    assert "| gpt | 0 | **0.25** |" in page
    assert "| ffn dense | 3e-07 |" in page
    assert "4 claims, 114 cases, 1 broken" in page
    assert "**Broken**: padding, gpt: 0.25 (left)" in page
    assert "- **future**, at most 1e-06: What comes later changes no answer" in page


def test_families_are_all_there() -> None:
    """Every registered part of a network belongs to a family that has a place in a model."""
    assert all(issubclass(part, FAMILIES) for part in parts())
