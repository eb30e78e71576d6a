"""Tunes glibc's malloc so that each training step reuses the memory of the previous step.

By default, glibc returns large blocks to the kernel when they are freed, and the kernel zeroes every page that it hands
out again. This can take half of the processor time of a training step if TensorFlow allocates its tensors with malloc,
which it does on processors for which it does not enable oneDNN.
"""

import ctypes
import os
from typing import Any

VARIABLE = "OFFICIAL_BERT_TUNE_MALLOC"  # 0 disables the tuning

# With a single arena, the heap is one piece, which is never unmapped. Threads then wait for each other in malloc, so
# machines with many processors keep their arenas.
_MAX_PROCESSORS = 8

# Numbers of parameters in glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_NEVER = 2**31 - 1
_PAD = 256 * 2**20  # bytes that the heap grows by; they use no memory until they are written

_is_tuned = False


def tune_allocator() -> bool:
    """Makes malloc keep freed memory until the process ends. Returns whether this had an effect.

    Call it before TensorFlow starts its threads. Peak memory does not increase. The function does nothing without
    glibc, on machines with more than 8 processors, and if the environment variable OFFICIAL_BERT_TUNE_MALLOC is 0.
    Other allocators, such as tcmalloc, ignore the settings.
    """
    global _is_tuned
    library = _glibc()
    if os.environ.get(VARIABLE) == "0" or library is None or len(os.sched_getaffinity(0)) > _MAX_PROCESSORS:
        return False
    # Blocks of any size are allocated on the heap instead of by mmap.
    for parameter, value in ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TOP_PAD, _PAD), (_TRIM_THRESHOLD, _NEVER)):
        library.mallopt(parameter, value)
    _is_tuned = True
    return True


def retune_allocator() -> None:
    """Restores the malloc setting that TensorFlow resets. Does nothing if `tune_allocator` had no effect.

    Call it after a dataset has been distributed: when the first dataset of a Python generator is created, TensorFlow
    sets malloc's trim threshold to 128 KiB.
    """
    library = _glibc()
    if _is_tuned and library is not None:
        library.mallopt(_TRIM_THRESHOLD, _NEVER)


def _glibc() -> Any:
    """Returns the C library of this process, or None if it is not glibc."""
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):
        return None
    return library if hasattr(library, "gnu_get_libc_version") and hasattr(library, "mallopt") else None
