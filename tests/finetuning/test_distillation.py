import dataclasses
import pathlib
import re

import numpy as np
import pytest

from official_bert.finetuning import runner
from official_bert.finetuning.distillation import DistillationLoss
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.tasks.options import GlueOptions
from tests.finetuning.conftest import change
from tests.make import refusal, write_text


def softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def test_the_loss_of_distillation_is_the_mix_of_both_cross_entropies():
    student, teacher = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    labels = np.eye(3, dtype=np.float32)[[0, 2, 1, 1]]
    t, share = 3.0, 0.7
    soft = -(softmax(teacher / t) * np.log(softmax(student / t))).sum(-1) * t * t
    hard = -(labels * np.log(softmax(student))).sum(-1)
    loss = DistillationLoss(ClassificationSpec(labels=("a", "b", "c")), t, share)
    found = float(loss(np.concatenate([labels, teacher], axis=-1), student))
    assert found == pytest.approx(np.mean(share * soft + (1 - share) * hard), rel=1e-5)
    values = np.array([[1.0, 2.0], [0.0, -1.0]], np.float32)  # label, teacher
    found = float(DistillationLoss(RegressionSpec(), 1.0, 0.5)(values, np.array([2.0, 0.0], np.float32)))
    assert found == pytest.approx((0.5 * 0 + 0.5 * 1 + 0.5 * 1 + 0.5 * 0) / 2)


@pytest.mark.slow
def test_a_student_learns_from_a_teacher_without_labels(options, trained, tmp_path):
    lines = pathlib.Path(options.task_options.train_file).read_text().splitlines()
    texts = write_text(tmp_path / "texts.csv", "".join(f"{line.rpartition(',')[0]}\n" for line in lines))
    # With the number of epochs of the other tests, the students of some seeds have only begun to learn.
    options = change(options, num_train_epochs=18.0, do_predict=False)
    student = change(options, teacher=trained.options.output_dir, train_file=texts, temperature=2.0)
    assert runner.run(student)["dev"]["accuracy"] > trained.scores["dev"]["accuracy"] - 0.1
    assert "Confusion matrix, dev" in (tmp_path / "run" / "MODEL_CARD.md").read_text()
    for split in ("train", "dev"):
        write_text(tmp_path / f"{split}.tsv", "sentence\tlabel\nthe cat\t1\nthe dog\t0\n")
    glue = {"task": "sst-2", "task_options": GlueOptions(data_dir=str(tmp_path)), "output_dir": "x"}
    message = refusal(lambda: runner.run(dataclasses.replace(student, **glue)))
    assert re.search("the teacher in .* has labels", message)
