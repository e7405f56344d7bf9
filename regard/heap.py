"""Memory that is kept, and memory in large pages: what a processor's time is lost on beside the numbers.

glibc gives large buffers back to the system when they are freed, and the system clears each page anew when it
is asked again: up to a seventh of a step's time, learning or answering. And who reads all weights for every
token asks for the place of each page of 4 KiB anew; of 2 MiB there are few enough to be known.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # malloc.h
MADV_COLLAPSE = 25  # mman.h, since Linux 6.1
PAGE = 1 << 21


def keep_memory() -> bool:
    """Let this process keep what it frees, and say whether it can: on Linux with glibc.

    All threads take from one heap: those that each thread has of its own are always given back.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(
        mallopt(M_MMAP_THRESHOLD, (1 << 31) - 1) and mallopt(M_TRIM_THRESHOLD, -1) and mallopt(M_ARENA_MAX, 1)
    )


def in_large_pages(tensors: Iterable[Tensor]) -> int:
    """Have the system move these into large pages where they stand: how many bytes it did move.

    The numbers and their addresses stay. What is no memory of this process's own, too small, or on a system
    that does not know how, stays as it is.
    """
    try:
        advise = ctypes.CDLL(None, use_errno=True).madvise
    except (OSError, AttributeError, TypeError):
        return 0
    moved = 0
    for t in tensors:
        if t.device.type != "cpu" or not t.is_contiguous():
            continue
        start = -(-t.data_ptr() // PAGE) * PAGE
        length = (t.data_ptr() + t.nbytes) // PAGE * PAGE - start
        if length > 0 and advise(ctypes.c_void_p(start), ctypes.c_size_t(length), MADV_COLLAPSE) == 0:
            moved += length
    return moved
