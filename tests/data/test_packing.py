"""Packed batches hold the same records as unpacked ones: none is lost, mixed up or repeated."""

import numpy as np
import pytest
import tensorflow as tf

from official_bert.data import packing
from official_bert.data.packing import Packing

LENGTH, LIMIT = 16, 4


def split_records(batch: dict[str, np.ndarray]) -> list[tuple[bytes, ...]]:
    """Returns each record of a packed batch, [rows, ...], as its tokens, segments, predictions and label."""
    records = []
    for row, record_ids in enumerate(batch["record_ids"]):
        np.testing.assert_array_equal(batch["input_mask"][row], record_ids > 0)
        assert not batch["input_ids"][row, record_ids == 0].any()
        count = int(batch["next_sentence_weights"][row].sum())
        assert sorted({*record_ids} - {0}) == list(range(1, count + 1))
        positions, is_prediction = batch["masked_lm_positions"][row], batch["masked_lm_weights"][row] > 0
        for number in range(1, count + 1):
            tokens = np.flatnonzero(record_ids == number)
            start = batch["record_starts"][row, number - 1]
            np.testing.assert_array_equal(tokens, start + np.arange(len(tokens)))
            np.testing.assert_array_equal(batch["position_ids"][row, tokens], np.arange(len(tokens)))
            own = is_prediction & (record_ids[positions] == number)
            values = [batch[name][row, tokens] for name in ("input_ids", "segment_ids")]
            values += [positions[own] - start, batch["masked_lm_ids"][row, own]]
            values.append(batch["next_sentence_labels"][row, [number - 1]])
            records.append(tuple(np.asarray(each, np.int32).tobytes() for each in values))
    return records


def random_batch(size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    lengths = rng.integers(3, LENGTH + 1, (size, 1))
    mask, exists = np.arange(LENGTH) < lengths, np.arange(LIMIT) < rng.integers(0, LIMIT + 1, (size, 1))
    values = {
        "input_ids": rng.integers(1, 99, (size, LENGTH)) * mask,
        "input_mask": mask,
        "segment_ids": mask & (np.arange(LENGTH) > 1),
        "masked_lm_positions": np.sort(rng.integers(0, lengths, (size, LIMIT))) * exists,
        "masked_lm_ids": rng.integers(1, 99, (size, LIMIT)) * exists,
        "next_sentence_labels": rng.integers(0, 2, (size, 1)),
    }
    features = {name: value.astype(np.int32) for name, value in values.items()}
    return {**features, "masked_lm_weights": exists.astype(np.float32)}


@pytest.mark.parametrize(("replicas", "rows"), [(1, 40), (1, 13), (2, 9)])
def test_every_record_is_packed_once_for_any_shape(monkeypatch, replicas, rows):
    monkeypatch.setattr(packing, "_GROUP", 16)  # three groups, the last one smaller
    size = 40
    parts = -(-size // (replicas * rows))
    shapes = Packing(batch_size=size, replicas=replicas, micro_batches=parts, typical_micro_batches=1, rows=rows)
    plain = random_batch(size)
    packed = packing.pack({name: tf.constant(value) for name, value in plain.items()}, shapes)
    assert {value.shape[:2] for value in packed.values()} == {(replicas * parts, rows)}
    in_rows = {name: value.numpy().reshape((-1, *value.shape[2:])) for name, value in packed.items()}
    one_each = {**plain, "record_ids": plain["input_mask"], "record_starts": np.zeros([size, 1], int)}
    one_each |= {"position_ids": np.tile(range(LENGTH), (size, 1)), "next_sentence_weights": np.ones([size, 1])}
    assert sorted(split_records(in_rows)) == sorted(split_records(one_each))
    # Parts are filled one after the other, equally on all replicas.
    by_replica = in_rows["input_mask"].any(axis=1).reshape(replicas, parts, rows).sum(axis=2)
    used = by_replica.sum()
    for replica in range(replicas):
        alone = (used - replica + replicas - 1) // replicas
        assert by_replica[replica].tolist() == [min(rows, max(0, alone - part * rows)) for part in range(parts)]
    assert 20 < used < 34


def lengths_batch(lengths: list[int], predictions: int = 1) -> dict[str, tf.Tensor]:
    mask = (np.arange(LENGTH) < np.array(lengths)[:, None]).astype(np.int32)
    weights = np.broadcast_to(np.arange(LIMIT) < predictions, (len(lengths), LIMIT)).astype(np.float32)
    return {"input_ids": tf.constant(mask), "input_mask": tf.constant(mask), "masked_lm_weights": tf.constant(weights)}


def test_a_feature_without_a_packing_rule_is_an_error():
    packing_of_two = Packing(batch_size=2, replicas=1, micro_batches=1, typical_micro_batches=1, rows=2)
    with pytest.raises(ValueError, match="'my_weights'"):
        packing.pack({**random_batch(2), "my_weights": np.ones((2, 1))}, packing_of_two)


def test_records_fill_the_fullest_row_that_has_room_for_tokens_and_predictions():
    assert LENGTH // 8 == 2  # records in a row
    row, start, first_prediction, number = packing._assign_rows(lengths_batch([4, 10, 16, 6, 12, 0, 2]))
    assert row.numpy().tolist() == [1, 2, 0, 2, 1, -1, 3]
    assert start.numpy().tolist()[:5] == [12, 0, 0, 10, 0]
    assert first_prediction.numpy().tolist()[:5] == number.numpy().tolist()[:5] == [1, 0, 0, 1, 0]
    assert int(packing.count_rows(lengths_batch([8, 8, 8, 8]))) == 2
    assert int(packing.count_rows(lengths_batch([8, 8, 8, 8], predictions=LIMIT // 2 + 1))) == 4


def test_the_packing_with_the_least_computation_is_chosen():
    # Numbers of parts, typical parts and rows. Full records cannot be packed.
    for length, replicas, *shape in ((20, 1, 2, 1, 20), (20, 2, 4, 2, 5), (32, 1, 1, 1, 32)):
        found = packing.choose_packing([length] * 10, 32, replicas, replicas)
        assert [found.micro_batches, found.typical_micro_batches, found.rows] == shape
        assert (found.batch_size, found.replicas, found.typical_rows) == (32, replicas, length)
    # Sixteen groups of records need 16 times the rows, plus some margin for their variation, which grows by only 4: an
    # extra part costs as much as all the others.
    varied = packing.choose_packing([90, 110] * 10, 4096, 1, 1)
    assert (varied.rows, varied.micro_batches) == (1697, 3)  # always, because a resumed run must have the same shapes
    assert packing.choose_packing([20, 60] * 5, 32, 1, 1).rows <= 32  # at most a record in each


def test_group_sizes_are_equal_and_a_row_holds_at_least_one_record():
    assert list(map(packing.get_group_size, (1, 40, 256, 257, 512, 513))) == [1, 40, 256, 129, 256, 171]
    assert [packing._get_max_records(length) for length in (4, 8, 128)] == [1, 1, 16]


def test_a_row_of_padding_is_not_a_record():
    batch = {"input_mask": tf.constant([[1, 1, 0], [0, 0, 0]]), "next_sentence_labels": tf.constant([[1], [0]])}
    spread = packing.spread_over_rows(batch)
    assert spread["next_sentence_weights"].numpy().tolist() == [[1.0], [0.0]]
    assert spread["position_ids"].numpy().tolist() == [[0, 1, 2]] * 2
