import numpy as np
import pytest
import tensorflow as tf
from official_bert.tasks.sequences import TextExample

from official_bert.finetuning import batches, feature_cache
from official_bert.modeling import task_models
from official_bert.tasks import glue, task
from official_bert.tasks.options import GlueOptions
from official_bert.tokenization.fast import FastTokenizer


def features(lengths, choices=1, tags=False) -> task.Features:
    ids = [np.full(length, number + 1) for number, length in enumerate(lengths)]
    total = sum(lengths)
    targets = np.arange(total) % 5 if tags else np.arange(len(lengths) // choices)
    made = {"labels": targets.astype(np.int32)}
    return task.from_rows(ids, [np.zeros(length) for length in lengths], made, {}, choices)


def test_every_row_is_in_one_batch_of_an_epoch_and_the_order_is_of_seed_and_epoch():
    lengths = np.random.default_rng(0).integers(2, 100, 1000)
    plan = batches.training_batch_indices(lengths, 16, seed=1, epoch=0)
    assert plan.shape == (63, 16)
    assert sorted(plan[plan >= 0].tolist()) == list(range(1000))
    np.testing.assert_array_equal(plan, batches.training_batch_indices(lengths, 16, seed=1, epoch=0))
    for seed, epoch in ((1, 1), (2, 0)):
        assert not np.array_equal(plan, batches.training_batch_indices(lengths, 16, seed, epoch))


def test_shuffling_favours_no_length():
    lengths = np.repeat([5, 50], 320)
    firsts = [lengths[batches.training_batch_indices(lengths, 8, seed, 0)[0, 0]] for seed in range(400)]
    assert 0.4 < np.mean(np.array(firsts) == 50) < 0.6


def test_batches_hold_little_padding_and_few_shapes():
    lengths = np.minimum(2 + np.random.default_rng(0).geometric(0.08, 4000), 128)
    plan = batches.training_batch_indices(lengths, 32, seed=1, epoch=0)
    longest = [-(-lengths[rows[rows >= 0]].max() // 8) * 8 for rows in plan]
    assert len(set(longest)) <= 16
    assert sum(32 * each for each in longest) < 1.6 * lengths.sum()
    assert sum(32 * each for each in longest) < 128 * 4000 / 3


def test_a_batch_is_padded_and_filled_up():
    made = features([2, 3, 9])
    plan = np.array([[2, 0], [1, -1]])
    (first, *_), (second, targets, weights) = batches.training_data(made, plan, 12).as_numpy_iterator()
    assert first["input_ids"].shape == (2, 12)  # 16 would be longer than is allowed
    assert second["input_ids"].tolist() == [[2, 2, 2, 0, 0, 0, 0, 0], [0] * 8]
    assert second["input_mask"].tolist() == [[1, 1, 1, 0, 0, 0, 0, 0], [0] * 8]
    assert targets[0] == 1
    assert weights.tolist() == [1.0, 0.0]


def test_choices_lie_beside_each_other():
    made = features([2, 3, 1, 2], choices=2)
    inputs = batches.padded_inputs(made, np.array([1, 0]), 128)
    assert inputs["input_ids"][:, :, 0].tolist() == [[3, 4], [1, 2]]
    assert inputs["input_ids"].shape == (2, 2, 4)  # of 3, rounded up
    assert batches.row_lengths(made).tolist() == [3, 2]


def test_tags_are_padded_with_no_label_and_fillers_have_none():
    made = features([2, 3], tags=True)
    ((_, tags),) = batches.training_data(made, np.array([[1, -1]]), 128).as_numpy_iterator()
    assert tags.tolist() == [[2, 3, 4, -1, -1, -1, -1, -1], [-1] * 8]


def test_the_loss_of_tags_is_the_mean_over_those_that_are_there():
    logits = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    tags = np.array([[1, -1, 2], [-1, -1, -1]])
    by_hand = [np.log(np.exp(logits[0, i]).sum()) - logits[0, i, tags[0, i]] for i in (0, 2)]
    assert float(task.TaggingLoss()(tags, logits)) == pytest.approx(np.mean(by_hand), rel=1e-5)


def test_features_are_kept_and_made_anew_when_anything_changes(vocab_file, tmp_path, monkeypatch):
    tokenizer = FastTokenizer(vocab_file)
    made = []

    class Counted(glue.GlueTask):
        def featurize(self, *arguments):
            made.append(arguments[-1])
            return super().featurize(*arguments)

    counted = Counted("rte", GlueOptions())
    examples = [TextExample("0", "the cat", "a dog", 1), TextExample("1", "sun", "mat", 0)]

    def get(examples, length=12, tokenizer=tokenizer):
        return feature_cache.features_of(counted, examples, tokenizer, length, str(tmp_path / "cache"))

    first, second = get(examples), get(examples)
    assert len(made) == 1
    for name in ("input_ids", "segment_ids", "splits"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    np.testing.assert_array_equal(first.targets["labels"], second.targets["labels"])
    assert second.details["example"].tolist() == [0, 1]
    get(examples[:1])
    get(examples, length=11)
    get(examples, tokenizer=FastTokenizer(vocab_file, do_lower_case=False))
    assert len(made) == 4
    for path in (tmp_path / "cache").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    get(examples)
    assert len(made) == 5


def test_damaged_features_are_made_anew(vocab_file, tmp_path):
    tokenizer = FastTokenizer(vocab_file)
    examples = [TextExample("0", "the cat", "a dog", 1), TextExample("1", "sun", "mat", 0)]

    def get():
        made = feature_cache.features_of(
            glue.GlueTask("rte", GlueOptions()), examples, tokenizer, 12, str(tmp_path / "cache")
        )
        return [
            made.input_ids.tolist(),
            made.segment_ids.tolist(),
            made.splits.tolist(),
            made.targets["labels"].tolist(),
        ]

    right = get()
    (path,) = (tmp_path / "cache").iterdir()
    content = path.read_bytes()
    damaged = [b"", content[:20], content[:-1]]
    damaged += [
        content[:place] + bytes([content[place] ^ 8]) + content[place + 1 :] for place in range(0, len(content), 211)
    ]
    for each in damaged:
        path.write_bytes(each)
        assert get() == right
        assert path.read_bytes() == content


@pytest.mark.parametrize("kind", task_models.KINDS)
def test_rows_that_fill_a_batch_are_not_learnt(kind):
    """The loss of three rows in a batch of eight has no gradient where the other five are."""
    rng = np.random.default_rng(0)
    if kind == task_models.TAGGING:
        labels = np.where(np.arange(8)[:, None] < 3, rng.integers(0, 2, (8, 5)), task.NO_LABEL).astype(np.int32)
        logits = rng.normal(size=(8, 5, 2))
    elif kind == task_models.MULTI_LABEL:
        labels, logits = rng.integers(0, 2, (8, 4)).astype(np.float32), rng.normal(size=(8, 4))
    elif kind == task_models.REGRESSION:
        labels, logits = rng.normal(size=8).astype(np.float32), rng.normal(size=8)
    else:
        labels, logits = rng.integers(0, 4, 8).astype(np.int32), rng.normal(size=(8, 4))
    weights = None if kind == task_models.TAGGING else (np.arange(8) < 3).astype(np.float32)
    losses = task.loss_of(kind)
    outputs = tf.Variable(logits, dtype=tf.float32)
    with tf.GradientTape() as tape:
        loss = (losses["start_logits"] if isinstance(losses, dict) else losses)(labels, outputs, weights)
    gradient = tape.gradient(loss, outputs).numpy()
    assert np.abs(gradient[:3]).min(axis=tuple(range(1, gradient.ndim))).all()
    assert not gradient[3:].any()
