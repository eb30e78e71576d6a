import dataclasses

import numpy as np
import pytest

from official_bert.errors import UserError
from official_bert.finetuning import class_weights
from official_bert.tasks.glue import GlueTask
from official_bert.tasks.heads.features import Features, from_rows
from official_bert.tasks.options import GlueOptions
from tests.conftest import WORDS

SST_2 = GlueTask("sst-2", GlueOptions())


def rows(count: int) -> Features:
    rng = np.random.default_rng(0)
    ids = [rng.integers(5, len(WORDS), rng.integers(3, 9)) for _ in range(count)]
    labels = rng.integers(0, 2, count).astype(np.int32)
    return from_rows(ids, [np.zeros(len(each)) for each in ids], {"labels": labels}, {})


def test_classes_weigh_alike_when_balanced():
    features = dataclasses.replace(rows(6), targets={"labels": np.array([0, 1, 1, 1, 1, 1], np.int32)})
    weights = class_weights.row_weights(["balanced"], SST_2.head, features)
    np.testing.assert_allclose(weights, [3.0, 0.6, 0.6, 0.6, 0.6, 0.6])
    np.testing.assert_allclose(
        class_weights.row_weights(["2", "0.5"], SST_2.head, features), [2, 0.5, 0.5, 0.5, 0.5, 0.5]
    )
    assert class_weights.row_weights([], SST_2.head, features) is None
    with pytest.raises(UserError, match="expected balanced, or 2 numbers, one for each of 0, 1"):
        class_weights.row_weights(["2"], SST_2.head, features)
    for wrong in ("nan", "inf", "-1"):
        with pytest.raises(UserError, match=f"--class_weights is 2,{wrong}; expected balanced, or 2 numbers"):
            class_weights.row_weights(["2", wrong], SST_2.head, features)
