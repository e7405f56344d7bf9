"""What is asked of the system's memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard.heap import PAGE, in_large_pages


def large() -> int:
    """KiB of this process in large pages."""
    path = Path("/proc/self/smaps_rollup")
    if not path.exists():
        pytest.skip("this system does not say which pages are large")
    return next(int(line.split()[1]) for line in path.read_text().splitlines() if "AnonHuge" in line)


def test_weights_move_into_large_pages_and_stay_what_they_are() -> None:
    weights = torch.randn(4 * PAGE // 4)
    copy, place = weights.clone(), weights.data_ptr()
    moved = in_large_pages([weights])
    assert torch.equal(weights, copy) and weights.data_ptr() == place
    if not moved:
        pytest.skip("this system has no large pages to give")
    assert moved % PAGE == 0 and 3 * PAGE <= moved <= weights.nbytes
    assert 1024 * large() >= moved


def test_what_cannot_be_moved_is_left_alone() -> None:
    small, elsewhere = torch.randn(1000), torch.empty(4 * PAGE, device="meta")
    across = torch.randn(2048, 2048).mT
    assert in_large_pages([small, elsewhere, across]) == 0
