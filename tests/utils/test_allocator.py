import ctypes
import os
from unittest import mock

import pytest

from official_bert.utils import allocator
from tests.make import run_python

# Allocates and frees 64 MiB repeatedly, after resetting the threshold as TensorFlow does, and prints the page faults of
# the last round. The heap grows only as needed, so that the reset has an effect below the 256 MiB of the tuned
# allocator.
FAULTS = """
import ctypes, resource
from official_bert.utils import allocator
allocator.tune_allocator()
ctypes.CDLL(None).mallopt(-2, 0)
ctypes.CDLL(None).mallopt(-1, 128 * 1024)
allocator.retune_allocator()
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    len(b"x" * 2**26)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(after - before)
"""
PAGES = 2**26 // 4096


@pytest.mark.skipif(allocator._glibc() is None, reason="the C library is not glibc")
def test_freed_memory_is_reused_without_page_faults_unless_the_environment_variable_disables_it():
    if len(os.sched_getaffinity(0)) > allocator._MAX_PROCESSORS:
        pytest.skip("nothing changes on a machine with this many processors")
    tuned, plain = (int(run_python("-c", FAULTS, environment={allocator.VARIABLE: each}).stdout) for each in "10")
    assert tuned < PAGES / 100
    assert plain >= PAGES / 2  # fewer than PAGES if the kernel maps several pages at once


@pytest.mark.parametrize("library", [object(), None])
def test_nothing_changes_without_glibc_or_with_many_processors(library: object, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(allocator.VARIABLE, "1")
    with monkeypatch.context() as patch:
        # Systems whose C library has no name raise a TypeError for None.
        patch.setattr(ctypes, "CDLL", lambda name: library or len(name))
        assert not allocator.tune_allocator()
        allocator.retune_allocator()
    monkeypatch.setattr(allocator, "_is_tuned", False)
    glibc = mock.Mock()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: glibc)
    for count, is_tuned in ((9, False), (8, True)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, count=count: set(range(count)), raising=False)
        assert allocator.tune_allocator() == is_tuned
        allocator.retune_allocator()
        assert glibc.mallopt.called == is_tuned
