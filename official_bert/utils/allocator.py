"""Settings of glibc's allocator under which a step reuses the memory of the step before.

By default glibc gives large blocks back to the kernel as soon as they are free, and the kernel zeroes every page that
it hands out again. Where TensorFlow allocates its tensors by malloc (on processors for which it does not enable
oneDNN), that was half of the processor time of a pre-training step of BERT-Tiny on two cores.
"""

import ctypes
import os
from typing import Any

VARIABLE = "OFFICIAL_BERT_TUNE_MALLOC"  # 0 leaves the allocator as it is

# With one arena for all threads the heap is one piece, which is never unmapped. Threads then wait for each other in
# malloc; that was measured on two processors only, so that machines with many keep their arenas.
_MOST_PROCESSORS = 8

# Numbers of parameters in glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_NEVER = 2**31 - 1
_PAD = 256 * 2**20  # bytes by which the heap grows; they cost no memory before they are used

_is_tuned = False


def tune_allocator() -> bool:
    """Has malloc keep freed memory for later; returns whether it did.

    To be called before TensorFlow starts its threads. The process does not return memory before it ends, but its peak
    is not higher: 1.28 GB instead of 1.31 GB for BERT-Tiny. Elsewhere than on Linux with glibc, on machines of more
    than 8 processors, and where the environment variable OFFICIAL_BERT_TUNE_MALLOC is 0, nothing changes. tcmalloc or
    jemalloc in place of glibc's malloc ignore these settings.
    """
    global _is_tuned
    library = _glibc()
    if os.environ.get(VARIABLE) == "0" or library is None or len(os.sched_getaffinity(0)) > _MOST_PROCESSORS:
        return False
    # Blocks come from the heap instead of a mapping of their own, whatever their size.
    for parameter, value in ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TOP_PAD, _PAD), (_TRIM_THRESHOLD, _NEVER)):
        library.mallopt(parameter, value)
    _is_tuned = True
    return True


def retune_allocator() -> None:
    """Sets again what TensorFlow resets; does nothing unless `tune_allocator` was called and did something.

    To be called when a data set has been distributed: with the first data set of a Python generator, which that makes,
    TensorFlow lowers the size of free memory at the heap's end that is given back to 128 KiB.
    """
    library = _glibc()
    if _is_tuned and library is not None:
        library.mallopt(_TRIM_THRESHOLD, _NEVER)


def _glibc() -> Any:
    """The C library of this process where it is glibc, else None."""
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):
        return None
    return library if hasattr(library, "gnu_get_libc_version") and hasattr(library, "mallopt") else None
