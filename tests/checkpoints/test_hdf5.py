"""Writing HDF5 files."""

import os
import pathlib
import resource

import numpy as np
import pytest

from official_bert.checkpoints import hdf5
from official_bert.errors import UserError


def test_a_full_disk_is_detected_before_hdf5_writes(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]):
    tensors = {f"{number}/vars/0": np.zeros((30, 30), np.float32) for number in range(100)}
    path = tmp_path / "model.weights.h5"
    hdf5.write_hdf5(str(path), tensors)
    size, before = path.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    path.write_bytes(b"the old one")
    for limit in (1000, size // 2, size - 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(UserError, match="cannot write .*model.weights.h5: File too large"):
                hdf5.write_hdf5(str(path), tensors)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert os.listdir(tmp_path) == ["model.weights.h5"]
        assert path.read_bytes() == b"the old one"
    assert capfd.readouterr().err == ""
