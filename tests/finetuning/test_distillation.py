import dataclasses

import numpy as np
import pytest

from official_bert.errors import UserError
from official_bert.finetuning import runner
from official_bert.finetuning.distillation import DistillationLoss
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.tasks.options import GlueOptions
from tests.finetuning.test_finetuning import add_task_options, options  # noqa: F401


def softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def test_the_loss_of_distillation_is_the_mix_of_both_cross_entropies():
    rng = np.random.default_rng(0)
    student, teacher = rng.normal(size=(2, 4, 3)).astype(np.float32)
    labels = np.eye(3, dtype=np.float32)[[0, 2, 1, 1]]
    t, share = 3.0, 0.7
    soft = -(softmax(teacher / t) * np.log(softmax(student / t))).sum(-1) * t * t
    hard = -(labels * np.log(softmax(student))).sum(-1)
    y_true = np.concatenate([labels, teacher], axis=-1)
    found = float(DistillationLoss(ClassificationSpec(labels=("a", "b", "c")), t, share)(y_true, student))
    assert found == pytest.approx(np.mean(share * soft + (1 - share) * hard), rel=1e-5)
    values = np.array([[1.0, 2.0], [0.0, -1.0]], np.float32)  # label, teacher
    found = float(DistillationLoss(RegressionSpec(), 1.0, 0.5)(values, np.array([2.0, 0.0], np.float32)))
    assert found == pytest.approx((0.5 * 0 + 0.5 * 1 + 0.5 * 1 + 0.5 * 0) / 2)


@pytest.mark.slow
def test_a_student_learns_from_a_teacher_without_labels(options, tmp_path, capsys):  # noqa: F811
    # With the number of epochs of the other tests, the students of some seeds have only begun to learn.
    options = dataclasses.replace(options, num_train_epochs=18.0)
    teacher = dataclasses.replace(options, output_dir=str(tmp_path / "teacher"), do_predict=False)
    expected = runner.run(teacher)
    lines = (tmp_path / "train.csv").read_text().splitlines()
    (tmp_path / "texts.csv").write_text("\n".join(line.rsplit(",", 1)[0] for line in lines) + "\n")
    student = dataclasses.replace(
        add_task_options(options, train_file=str(tmp_path / "texts.csv")),
        teacher=teacher.output_dir,
        temperature=2.0,
        do_predict=False,
    )
    found = runner.run(student)
    assert found["dev"]["accuracy"] > expected["dev"]["accuracy"] - 0.1
    assert "Confusion matrix, dev" in (tmp_path / "run" / "MODEL_CARD.md").read_text()
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text("sentence\tlabel\nthe cat\t1\nthe dog\t0\n")
    sst_2 = {"task": "sst-2", "task_options": GlueOptions(data_dir=str(tmp_path))}
    with pytest.raises(UserError, match="the teacher in .* has labels"):
        runner.run(dataclasses.replace(student, **sst_2, output_dir="x"))
