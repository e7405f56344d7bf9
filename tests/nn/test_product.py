"""One row by all threads: the same numbers, and torch's own way wherever anything else is asked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from regard.native import multiplies
from regard.nn import product as module
from regard.nn.product import Linear, product


@pytest.fixture(params=["kernel", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By the kernel in C, if there is one, and by PyTorch."""
    if request.param == "torch":
        monkeypatch.setattr(module, "multiplies", lambda: False)
    elif not multiplies():
        pytest.skip("no kernel was compiled for this processor")
    return str(request.param)


@pytest.fixture(params=[2, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """So many threads, and no matrix too small for them."""
    before = torch.get_num_threads()
    monkeypatch.setattr(module, "LEAST", 1)
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("shape", [(24,), (1, 24), (1, 1, 24)])
@pytest.mark.parametrize("rows", [1, 2, 6, 31])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("by", ["rows", "columns"])
@pytest.mark.parametrize("width", [24, 25, 89])
def test_a_row_is_the_product_of_its_shares(
    way: str, threads: int, shape: tuple[int, ...], rows: int, biased: bool, by: str, width: int
) -> None:
    """Also where the rows or columns of W do not divide among the threads, or are fewer."""
    x, bias = torch.randn(*shape[:-1], width), torch.randn(rows) if biased else None
    weight = torch.randn(rows, width) if by == "rows" else torch.randn(width, rows).mT
    with torch.no_grad():
        found = product(x, weight, bias)
    wanted = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() < 1e-5


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when its compiler is imported
@pytest.mark.parametrize("by", ["rows", "columns"])
def test_a_compiled_row_is_the_same(way: str, threads: int, by: str) -> None:
    """In one graph, by an operator that the compiler does not look into."""
    x, weight, bias = torch.randn(1, 1, 24), torch.randn(31, 24), torch.randn(31)
    weight = weight if by == "rows" else weight.mT.contiguous().mT
    torch.compiler.reset()
    program = torch.compile(product, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(program(x, weight, bias), product(x, weight, bias))
    torch.library.opcheck(
        torch.ops.regard.row.default, (x, weight, bias), test_utils=["test_schema", "test_faketensor"]
    )


def test_all_threads_are_asked_for_one_row_only(
    way: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for two, not where something is learned, not in half precision."""
    split: list[int] = []
    row = module._row
    monkeypatch.setattr(module, "_row", lambda *given: split.append(1) or row(*given))  # type: ignore[func-returns-value]
    layer = Linear(24, 12)
    layer(torch.randn(1, 24)).sum().backward()
    assert layer.weight.grad is not None
    with torch.no_grad():
        layer(torch.randn(2, 24))
        layer(torch.randn(0, 24))
        product(torch.randn(1, 24).bfloat16(), torch.randn(12, 24).bfloat16())
        product(torch.randn(1, 24), torch.randn(12, 48)[:, ::2])
        with torch.autocast("cpu", torch.bfloat16):
            layer(torch.randn(1, 24))
        assert not split
        layer(torch.randn(1, 24))
        assert split == [1]
        layer(torch.randn(24, 2)[:, 1])  # whose numbers stand apart
    assert split == [1, 1]
