"""How much memory the C library keeps for threads."""

from __future__ import annotations

import ctypes
import platform
import sys

_M_ARENA_MAX = -8
"""From glibc's malloc.h."""
_ARENAS = 2


def limit_malloc_arenas() -> None:
    """Have glibc keep two pools of memory; to be called before threads start.

    It keeps one for each of most threads otherwise, and a server has many: its memory creeps up
    until each pool has seen its largest load. Other C libraries have no such pools.
    """
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
