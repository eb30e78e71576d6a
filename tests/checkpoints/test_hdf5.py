"""Damaged HDF5 files are reported by name."""

import numpy as np

from official_bert.checkpoints.hdf5 import open_hdf5, write_hdf5
from official_bert.errors import UserError


def test_a_changed_bit_is_not_noticed_or_reported_as_damage(tmp_path):
    path = tmp_path / "model.weights.h5"
    write_hdf5(str(path), {"layers/dense/vars/0": np.ones((4, 4), np.float32)})
    content = path.read_bytes()
    errors = []
    for position in range(1000):  # the file's header, its groups and the header of the dataset
        path.unlink()  # HDF5 would not read the file again if it was still open
        path.write_bytes(content[:position] + bytes([content[position] ^ 1 << position % 8]) + content[position + 1 :])
        try:
            source = open_hdf5(str(path))
            for name in source.shapes:
                source.read(name)
        except UserError as error:
            errors.append(error)
    assert all(str(path) in str(error) for error in errors)
    assert {type(error.__cause__) for error in errors} >= {OSError, RuntimeError, KeyError, ValueError}
