"""Settings of every test: one thread, nothing downloaded, and a fixed seed before each test."""

from __future__ import annotations

import os
import signal

# Set before torch is imported: one thread gives the same bits everywhere, and two workers share two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")

import pytest
import torch


@pytest.fixture(autouse=True)
def one_seed() -> None:
    """A test that draws random numbers draws the same ones alone and in company."""
    torch.manual_seed(0)


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)
    # Started in the background or under nohup, a process ignores these, and so would all it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
