"""Memory that is kept: a step takes the same large buffers again and again.

glibc gives large buffers back to the system when they are freed, and the system clears each page anew when it
is asked again: up to a seventh of a step's time.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_memory() -> bool:
    """Let this process keep what it frees, and say whether it can: on Linux with glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, 1 << 30) and mallopt(M_TRIM_THRESHOLD, -1))
