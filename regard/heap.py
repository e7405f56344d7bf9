"""Memory that is kept: a step takes the same large buffers again and again.

glibc gives large buffers back to the system when they are freed, and the system clears each page anew when it
is asked again: up to a seventh of a step's time, learning or answering.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # malloc.h


def keep_memory() -> bool:
    """Let this process keep what it frees, and say whether it can: on Linux with glibc.

    All threads take from one heap: those that each thread has of its own are always given back.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(
        mallopt(M_MMAP_THRESHOLD, 1 << 30) and mallopt(M_TRIM_THRESHOLD, -1) and mallopt(M_ARENA_MAX, 1)
    )
