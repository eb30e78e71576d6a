import numpy as np
import pytest

from official_bert.errors import UserError
from official_bert.finetuning import batches
from official_bert.kinds.features import Features, concatenate_rows


def features(lengths, choices=1, tags=False) -> Features:
    ids = [np.full(length, number + 1) for number, length in enumerate(lengths)]
    total = sum(lengths)
    targets = np.arange(total) % 5 if tags else np.arange(len(lengths) // choices)
    made = {"labels": targets.astype(np.int32)}
    return concatenate_rows(ids, [np.zeros(length) for length in lengths], made, {}, choices)


def test_every_row_is_in_one_batch_of_an_epoch_and_the_order_is_of_seed_and_epoch():
    lengths = np.random.default_rng(0).integers(2, 100, 1000)
    for group_by_length in (False, True):
        settings = {"group_by_length": group_by_length}
        plan = batches.draw_batches(lengths, 16, seed=1, epoch=0, **settings)
        assert plan.shape == (63, 16)
        assert sorted(plan[plan >= 0].tolist()) == list(range(1000))
        np.testing.assert_array_equal(plan, batches.draw_batches(lengths, 16, seed=1, epoch=0, **settings))
        for seed, epoch in ((1, 1), (2, 0)):
            assert not np.array_equal(plan, batches.draw_batches(lengths, 16, seed, epoch, **settings))


def test_batches_are_random_whatever_the_lengths():
    rng = np.random.default_rng(0)
    plans = [batches.draw_batches(rng.integers(2, 100, 1000), 16, seed=1, epoch=0) for _ in range(2)]
    np.testing.assert_array_equal(*plans)


def test_grouping_by_length_favours_no_length():
    lengths = np.repeat([5, 50], 320)
    plans = [batches.draw_batches(lengths, 8, seed, 0, group_by_length=True) for seed in range(400)]
    assert 0.4 < np.mean([lengths[plan[0, 0]] == 50 for plan in plans]) < 0.6


def test_batches_grouped_by_length_hold_little_padding_and_few_shapes():
    lengths = np.minimum(2 + np.random.default_rng(0).geometric(0.08, 4000), 128)
    plan = batches.draw_batches(lengths, 32, seed=1, epoch=0, group_by_length=True)
    longest = [-(-lengths[rows[rows >= 0]].max() // 8) * 8 for rows in plan]
    assert len(set(longest)) <= 16
    assert sum(32 * each for each in longest) < 1.6 * lengths.sum()
    assert sum(32 * each for each in longest) < 128 * 4000 / 3


def test_a_batch_is_padded_and_filled_up():
    made = features([2, 3, 9])
    plan = np.array([[2, 0], [1, -1]])
    first, second = (batches.pad_batch(made, rows, 12, multiple=8)[0] for rows in plan)
    assert first["input_ids"].shape == (2, 12)  # 16 would exceed the maximum length
    assert second["input_ids"].tolist() == [[2, 2, 2, 0, 0, 0, 0, 0], [0] * 8]
    assert second["input_mask"].tolist() == [[1, 1, 1, 0, 0, 0, 0, 0], [0] * 8]
    row_weights = np.array([0.5, 2.0, 3.0], np.float32)
    _, targets, weights = batches.pad_batch(made, plan[1], 12, row_weights)
    assert (targets[0], weights[0]) == (1, 2.0)


def test_choices_lie_beside_each_other():
    made = features([2, 3, 1, 2], choices=2)
    inputs = batches.padded_inputs(made, np.array([1, 0]), 128)
    assert inputs["input_ids"][:, :, 0].tolist() == [[3, 4], [1, 2]]
    assert inputs["input_ids"].shape == (2, 2, 4)  # 3, rounded up
    assert batches.row_lengths(made).tolist() == [3, 2]


def test_tags_are_padded_with_no_label_and_fillers_have_none():
    made = features([2, 3], tags=True)
    _, tags = batches.pad_batch(made, np.array([1, -1]), 128, multiple=8)
    assert tags.tolist() == [[2, 3, 4, -1, -1, -1, -1, -1], [-1] * 8]


def assert_apart(plan: np.ndarray, texts: np.ndarray) -> None:
    for rows in plan:
        own = texts[rows[rows >= 0]]
        of_rows = [set(row) for row in own.tolist()]
        assert sum(map(len, of_rows)) == len(set().union(*of_rows))


def test_rows_with_a_text_in_common_do_not_share_a_batch():
    rng = np.random.default_rng(0)
    texts = np.stack([rng.integers(0, 60, 200), 100 + np.arange(200)], 1)  # about three rows for each first text
    lengths = rng.integers(2, 30, 200)
    plan = batches.draw_batches(lengths, 16, seed=1, epoch=0, texts=texts)
    assert plan.shape == (13, 16)
    rows = plan[plan >= 0].tolist()
    assert len(rows) == len(set(rows)) >= 199
    assert_apart(plan, texts)
    np.testing.assert_array_equal(plan, batches.draw_batches(lengths, 16, seed=1, epoch=0, texts=texts))


def test_rows_for_which_there_is_no_batch_are_left_out(capsys: pytest.CaptureFixture[str]):
    texts = np.stack([np.zeros(10, int), 1 + np.arange(10)], 1)
    plan = batches.draw_batches(np.full(10, 5), 5, seed=0, epoch=0, texts=texts)
    assert plan.shape == (2, 5)
    assert (plan >= 0).sum() == 2
    expected = "note: the epoch leaves out 8 of 10 rows, because other rows contain the same texts\n"
    assert capsys.readouterr().out == expected


def test_a_row_alone_has_nothing_to_be_told_from():
    texts = np.arange(8).reshape(4, 2)
    with pytest.raises(UserError, match="the batch size is 1.* 2 or more"):
        batches.draw_batches(np.full(4, 5), 1, seed=0, epoch=0, texts=texts)


def test_no_thread_tunes_the_data_by_the_time_of_day():
    made = features([2, 3, 9])
    data = batches.make_dataset(lambda rows: batches.pad_batch(made, rows, 12)[:2], [np.array([0, 1]), np.array([2])])
    assert data.options().autotune.enabled is False
