import dataclasses
import functools
import pathlib
import types
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import softmax

from official_bert.checkpoints.formats import finetuned
from official_bert.finetuning import distillation, runner
from official_bert.finetuning.distillation import DistillationLoss
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.kinds.text_spec import TextExample
from official_bert.tokenization.exact import FullTokenizer
from tests.finetuning.conftest import change
from tests.make import VOCAB, assert_rejected, write_text


def test_distillation_loss_is_the_weighted_sum_of_both_cross_entropies():
    student, teacher = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    labels = np.eye(3, dtype=np.float32)[[0, 2, 1, 1]]
    t, share = 3.0, 0.7
    soft = -(softmax(teacher / t, -1) * np.log(softmax(student / t, -1))).sum(-1) * t * t
    hard = -(labels * np.log(softmax(student, -1))).sum(-1)
    loss = DistillationLoss(ClassificationSpec(labels=("a", "b", "c")), t, share)
    found = float(loss(np.concatenate([labels, teacher], axis=-1), student))
    assert found == pytest.approx(np.mean(share * soft + (1 - share) * hard), rel=1e-5)
    values = np.array([[1.0, 2.0], [0.0, -1.0]], np.float32)  # label, teacher
    found = float(DistillationLoss(RegressionSpec(), 1.0, 0.5)(values, np.array([2.0, 0.0], np.float32)))
    assert found == pytest.approx((0.5 * 0 + 0.5 * 1 + 0.5 * 1 + 0.5 * 0) / 2)


def test_a_teacher_predicts_with_its_own_window_length(options, monkeypatch: pytest.MonkeyPatch):
    """Each row of the student's gets its text's labels, and the mean logits of the windows that the teacher reads."""
    head = ClassificationSpec(labels=("a", "b", "c"), doc_stride=2)
    task = types.SimpleNamespace(spec=head, name="t", task_spec=lambda length: head.task_spec("t", length))
    tokenizer = FullTokenizer.from_vocab(VOCAB)
    examples = [TextExample("0", "a b c d e f", None, 2), TextExample("1", "a", None, 0)]
    teacher = types.SimpleNamespace(task_spec=head.task_spec("t", 6), tokenizer=tokenizer)
    logits = [np.float32([1, 2, 3]), np.float32([3, 2, 1]), np.float32([0, 5, 0])]  # two windows, and one

    keras_runner = mock.Mock()
    keras_runner.return_value.compute_outputs.return_value = logits
    monkeypatch.setattr(distillation, "open_model", lambda folder: teacher)
    monkeypatch.setattr(finetuned, "build_model", lambda loaded: None)
    monkeypatch.setattr(distillation, "KerasRunner", keras_runner)
    features = head.featurize(examples, tokenizer, 4)  # the student's windows have two tokens
    options = dataclasses.replace(options, teacher="folder", teacher_weight=0.5)
    settings = {"options": options, "strategy": tf.distribute.get_strategy()}
    prepare = functools.partial(distillation.prepare_distillation, task, examples, **settings)
    found, _ = prepare(features)
    assert keras_runner.call_args.args[2] == 6
    assert keras_runner.return_value.compute_outputs.call_args.args[0].details["example"].tolist() == [0, 0, 1]
    assert found.targets["labels"].tolist() == [[0, 0, 1, 2, 2, 2]] * 3 + [[1, 0, 0, 0, 5, 0]]
    unlabelled = dataclasses.replace(features, targets={})
    assert_rejected("--teacher_weight=1", prepare, unlabelled)
    options = dataclasses.replace(options, teacher_weight=1.0)
    found, _ = prepare(unlabelled, options=options)
    assert found.targets["labels"].tolist() == [[0, 0, 0, 2, 2, 2]] * 3 + [[0, 0, 0, 0, 5, 0]]
    teacher.task_spec["labels"] = ["b", "a", "c"]
    assert_rejected(("folder", teacher.task_spec["labels"], ["a", "b", "c"]), prepare, features)


@pytest.mark.slow
def test_a_student_learns_from_a_teacher_without_labels(options, trained, tmp_path):
    lines = pathlib.Path(options.task_options.train_file).read_text().splitlines()
    texts = write_text(tmp_path / "texts.csv", "".join(f"{line.rpartition(',')[0]}\n" for line in lines))
    # With the number of epochs of the other tests, the students of some seeds have only begun to learn.
    options = change(options, num_train_epochs=18.0, do_predict=False)
    student = change(options, teacher=trained.options.output_dir, train_file=texts, temperature=2.0)
    assert runner.run(student)["dev"]["accuracy"] > trained.scores["dev"]["accuracy"] - 0.1
    assert "Confusion matrix, dev" in (tmp_path / "run" / "MODEL_CARD.md").read_text()
