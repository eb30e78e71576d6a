"""Shared fixtures of the record tests."""

import pytest

from tests.data_gen.inspection.record_samples import good, write


@pytest.fixture
def shards(tmp_path) -> list[str]:
    """Five files of 7, 8, 9, 10 and 11 records. The first ids are 0 to 6, 10 to 17, and so on."""
    return [
        write(tmp_path / f"{i}.tfrecord", [good(input_ids=[number] + [1] * 9) for number in range(10 * i, 11 * i + 7)])
        for i in range(5)
    ]
