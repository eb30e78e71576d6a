import numpy as np
import pytest

from official_bert.finetuning import batches
from official_bert.kinds.features import Features, batches_by_length, concatenate_rows, padded_inputs, row_lengths
from tests.make import assert_rejected


def make_features(lengths, choices=1, tags=False) -> Features:
    """Returns rows whose tokens all have the number of the row as their id, from 1 on."""
    ids = [np.full(length, number + 1) for number, length in enumerate(lengths)]
    labels = np.arange(sum(lengths)) % 5 if tags else np.arange(len(lengths) // choices)
    targets = {"labels": labels.astype(np.int32)}
    segment_ids = [np.zeros(length) for length in lengths]
    return concatenate_rows(ids, segment_ids, targets, {}, choices, has_token_outputs=tags)


@pytest.mark.parametrize("group_by_length", [False, True])
def test_each_epoch_has_every_row_once_in_an_order_given_by_seed_and_epoch(group_by_length: bool):
    lengths = np.random.default_rng(0).integers(2, 100, 1000)
    seeds_and_epochs, settings = ((1, 0), (1, 0), (1, 1), (2, 0)), {"group_by_length": group_by_length}
    plan, same, *others = (batches.draw_batches(lengths, 16, *each, **settings) for each in seeds_and_epochs)
    assert plan.shape == (63, 16)
    assert sorted(plan[plan >= 0].tolist()) == list(range(1000))
    np.testing.assert_array_equal(plan, same)
    assert not any(np.array_equal(plan, other) for other in others)
    of_other_lengths = batches.draw_batches(lengths[::-1], 16, 1, 0, **settings)
    assert np.array_equal(plan, of_other_lengths) != group_by_length


def test_balanced_epochs_have_equally_many_rows_of_each_class_and_reach_all_rows():
    classes = np.repeat([0, 1, 2], [70, 20, 11])
    drawn = [batches.draw_batches(np.full(101, 5), 10, 0, epoch, classes).ravel() for epoch in (*range(10), 0)]
    np.testing.assert_array_equal(drawn[0], drawn[-1])
    for epoch in drawn:
        rows = epoch[epoch >= 0]
        assert sorted(np.bincount(classes[rows])) == [33, 34, 34]
        assert max(np.bincount(rows)) <= 4  # 34 rows drawn from 11
    assert set(np.concatenate(drawn).tolist()) == {-1, *range(101)}


def test_grouping_by_length_reduces_padding_and_shapes_and_does_not_bias_the_order_of_lengths():
    lengths = np.minimum(2 + np.random.default_rng(0).geometric(0.08, 4000), 128)
    plan = batches.draw_batches(lengths, 32, seed=1, epoch=0, group_by_length=True)
    longest = [-(-lengths[rows[rows >= 0]].max() // 8) * 8 for rows in plan]
    assert len(set(longest)) <= 16
    assert 32 * sum(longest) < min(1.6 * lengths.sum(), 128 * 4000 / 3)
    lengths = np.repeat([5, 50], 320)
    plans = [batches.draw_batches(lengths, 8, seed, 0, group_by_length=True) for seed in range(400)]
    assert 0.4 < np.mean([lengths[plan[0, 0]] == 50 for plan in plans]) < 0.6


def test_batches_to_predict_reach_both_of_their_limits():
    lengths, expected = np.array([9, 2, 3, 3, 2]), [[1, 4], [2, 3], [0]]
    for limits, grouped in (({"max_rows": 2}, expected), ({"max_tokens": 6}, expected), ({}, [[1, 4, 2, 3, 0]])):
        assert [rows.tolist() for rows in batches_by_length(lengths, **limits)] == grouped


def test_a_batch_is_padded_and_filled_up_with_rows_and_tags_without_labels():
    features = make_features([2, 3, 9])
    assert batches.pad_batch(features, np.array([2, 0]), 12, multiple=8)[0]["input_ids"].shape == (2, 12)  # at most 12
    row_weights = np.array([0.5, 2.0, 3.0], np.float32)
    inputs, targets, weights = batches.pad_batch(features, np.array([1, -1]), 12, row_weights, multiple=8)
    assert inputs["input_ids"].tolist() == [[2, 2, 2, 0, 0, 0, 0, 0], [0] * 8]
    assert inputs["input_mask"].tolist() == [[1, 1, 1, 0, 0, 0, 0, 0], [0] * 8]
    assert (targets[0], weights[0]) == (1, 2.0)
    _, tags = batches.pad_batch(make_features([2, 3], tags=True), np.array([1, -1]), 128, multiple=8)
    assert tags.tolist() == [[2, 3, 4, -1, -1, -1, -1, -1], [-1] * 8]


def test_the_choices_of_an_example_are_adjacent():
    features = make_features([2, 3, 1, 2], choices=2)
    ids = padded_inputs(features, np.array([1, 0]), 128)["input_ids"]
    assert ids.shape == (2, 2, 4)  # 3, rounded up
    assert ids[:, :, 0].tolist() == [[3, 4], [1, 2]]
    assert row_lengths(features).tolist() == [3, 2]


def test_rows_that_share_a_text_are_in_different_batches():
    rng = np.random.default_rng(0)
    texts = np.stack([rng.integers(0, 60, 200), 100 + np.arange(200)], 1)  # about three rows for each first text
    lengths = rng.integers(2, 30, 200)
    plan, same = (batches.draw_batches(lengths, 16, seed=1, epoch=0, texts=texts) for _ in range(2))
    np.testing.assert_array_equal(plan, same)
    assert plan.shape == (13, 16)
    rows = plan[plan >= 0].tolist()
    assert len(rows) == len(set(rows)) >= 199
    for rows in plan:
        own = texts[rows[rows >= 0]]
        assert len(np.unique(own)) == own.size


def test_rows_that_fit_into_no_batch_are_omitted(capsys: pytest.CaptureFixture[str]):
    texts = np.stack([np.zeros(10, int), 1 + np.arange(10)], 1)
    plan = batches.draw_batches(np.full(10, 5), 5, seed=0, epoch=0, texts=texts)
    assert plan.shape == (2, 5)
    assert (plan >= 0).sum() == 2
    assert "leaves out 8 of 10 rows" in capsys.readouterr().out
    batches.draw_batches(np.full(10, 5), 5, seed=0, epoch=0, texts=texts, prints_note=False)
    assert not capsys.readouterr().out
    assert_rejected(("batch", 1, 2), batches.draw_batches, np.full(10, 5), 1, seed=0, epoch=0, texts=texts)


def test_tf_data_autotuning_is_disabled():
    batch = batches.pad_batch(make_features([2, 3]), np.array([0, 1]), 12)
    data = batches.make_dataset(lambda: iter([batch]), 1)
    assert data.options().autotune.enabled is False
