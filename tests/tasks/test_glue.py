import pathlib

import numpy as np
import pytest

from official_bert.errors import UserError
from official_bert.kinds.text_spec import TextExample
from official_bert.tasks import glue
from official_bert.tasks.options import GLUE, GlueOptions
from official_bert.utils.bad_rows import BadRows
from tests.make import refusal, write_text

# Number of examples in each part of the release, if available here.
ROWS = {
    "cola": ("CoLA", 8551, 1043, 1063),
    "sst-2": ("SST-2", 67349, 872, 1821),
    "mrpc": ("MRPC", 3668, 408, 1725),
    "sts-b": ("STS-B", 5749, 1500, 1379),
    "rte": ("RTE", 2490, 277, 3000),
    "wnli": ("WNLI", 635, 71, 146),
    "qnli": ("QNLI", None, 5463, None),
}


def task_in(folder, name) -> glue.GlueTask:
    return glue.GlueTask(name, GlueOptions(data_dir=str(folder)))


def test_every_task_of_glue_has_options():
    assert tuple(glue.SPECS) == GLUE


def test_labels_have_the_order_of_the_original():
    labels = {name: spec.labels for name, spec in glue.SPECS.items()}
    binary, relations = ("0", "1"), ("contradiction", "entailment", "neutral")
    assert labels == {
        **dict.fromkeys(("cola", "sst-2", "mrpc", "qqp", "wnli"), binary), **dict.fromkeys(("mnli", "ax"), relations),
        **dict.fromkeys(("qnli", "rte"), ("entailment", "not_entailment")), "sts-b": None,
    }  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_all_examples_of_the_release_are_read(name, test_data):
    folder, *counts = ROWS[name]
    task = task_in(test_data / "glue" / folder, name)
    for split, count in zip(("train", "dev", "test"), counts, strict=True):
        if count is not None:
            examples = task.read(split, BadRows())
            assert len(examples) == count
            assert all(example.text_a and (example.text_b is not None) == task.head.pair for example in examples)
            assert all((example.label is None) == (split == "test") for example in examples)


def test_a_file_is_read_as_the_release_has_it(tmp_path):
    # A byte order mark, quotes without a special meaning, Windows line endings, and an extra column.
    (tmp_path / "train.tsv").write_text(
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t5\t6\t" He said\tShe " said\r\n0\t7\t8\tx\ty\tmore\r\n'
    )
    examples = task_in(tmp_path, "mrpc").read("train", BadRows())
    assert examples == [TextExample("0", '" He said', 'She " said', 1), TextExample("1", "x", "y", 0)]


def test_mnli_qqp_and_the_diagnostic_set_are_read_by_their_known_columns(tmp_path):
    (tmp_path / "dev_matched.tsv").write_text(
        "index\tpromptID\tsentence1\tsentence2\tlabel1\tgold_label\n4\tp\tA man.\tA cat.\tneutral\tcontradiction\n"
    )
    examples = task_in(tmp_path, "mnli").read("dev_matched", BadRows())
    assert examples == [TextExample("4", "A man.", "A cat.", 0)]
    (tmp_path / "train.tsv").write_text("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n9\t1\t2\tWho?\tWhat?\t1\n")
    assert task_in(tmp_path, "qqp").read("train", BadRows()) == [TextExample("0", "Who?", "What?", 1)]
    (tmp_path / "diagnostic.tsv").write_text("index\tsentence1\tsentence2\n0\tA.\tB.\n")
    assert task_in(tmp_path, "ax").read("test", BadRows()) == [TextExample("0", "A.", "B.")]
    assert "a run on mnli as --init" in refusal(task_in(tmp_path, "ax").read, "train", BadRows())


@pytest.mark.parametrize(("row", "problem"), [
    ("a text", "1 column; expected 2: sentence, label"),
    ("a text\t2", "unknown label '2'; expected one of 0, 1"),
    (" \t1", "an empty text in sentence"),
])  # fmt: skip
def test_a_bad_row_is_named_or_counted(row, problem, tmp_path, capsys):
    path = write_text(tmp_path / "train.tsv", f"sentence\tlabel\ngood\t1\n{row}\nfine\t0\n")
    task = task_in(tmp_path, "sst-2")
    with pytest.raises(UserError, match=f"train.tsv, line 3: {problem}.*--on_bad_row=skip"):
        task.read("train", BadRows())
    bad_rows = BadRows("skip")
    assert [example.text_a for example in task.read("train", bad_rows)] == ["good", "fine"]
    assert bad_rows.summary() == [f"skipped 1 bad row of {path}"]
    assert "line 3" in capsys.readouterr().err


def test_missing_files_and_columns_are_named(tmp_path):
    with pytest.raises(UserError, match="has no train split; expected a file named train.tsv"):
        task_in(tmp_path, "rte").read("train", BadRows())
    (tmp_path / "train.tsv").write_text("index\ttext\n")
    with pytest.raises(UserError, match="no column sentence1, sentence2 among index, text"):
        task_in(tmp_path, "rte").read("train", BadRows())


def test_a_score_out_of_range_is_named(tmp_path):
    (tmp_path / "dev.tsv").write_text("sentence1\tsentence2\tscore\na\tb\t5.5\n")
    assert "score '5.5'; expected a number from 0 to 5" in refusal(task_in(tmp_path, "sts-b").read, "dev", BadRows())


def test_submissions_have_the_leaderboards_form(tmp_path):
    examples = [TextExample("0", "a", "b"), TextExample("1", "c", "d")]
    probabilities = np.array([[0.1, 0.7, 0.2], [0.8, 0.1, 0.1]])
    paths = task_in(tmp_path, "mnli").write_predictions(str(tmp_path), "test_mismatched", probabilities, examples)
    assert [pathlib.Path(path).name for path in paths] == ["predictions_test_mismatched.tsv", "MNLI-mm.tsv"]
    assert (tmp_path / "MNLI-mm.tsv").read_text() == "index\tprediction\n0\tentailment\n1\tcontradiction\n"
    for scores, written in (([-0.2, 2.34567], ("0", "2.34567")), ([5.1, 5.0], ("5", "5"))):
        task_in(tmp_path, "sts-b").write_predictions(str(tmp_path), "test", np.array(scores), examples)
        assert (tmp_path / "STS-B.tsv").read_text() == "index\tprediction\n0\t{}\n1\t{}\n".format(*written)
    task_in(tmp_path, "mnli").write_predictions(str(tmp_path), "dev_matched", probabilities, examples)
    assert (tmp_path / "predictions_dev_matched.tsv").read_text().startswith("id\tprediction\texpected\tprobability of")


def test_every_task_scores_a_perfect_prediction_best():
    for name in glue.SPECS:
        task = task_in("", name)
        if task.head.is_value:
            examples = [TextExample(str(i), "a", "b", float(i)) for i in range(5)]
            predictions = np.arange(5.0)
        else:
            numbers = [i % len(task.head.labels) for i in range(9)]
            examples = [TextExample(str(i), "a", "b", number) for i, number in enumerate(numbers)]
            predictions = np.eye(len(task.head.labels))[numbers]
        found = task.metrics(predictions, examples)
        assert {task.best_metric} <= {*task.score_names} <= {*found}
        assert all(value == pytest.approx(1.0) for value in found.values()), task.name
        assert all(outcome.correct for outcome in task.head.outcomes(predictions, examples))


def test_evaluation_data_need_labels_and_empty_test_rows_are_predicted(tmp_path):
    (tmp_path / "dev.tsv").write_text("sentence\na film\n")
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\ta film\n1\t \n")
    with pytest.raises(UserError, match=r"dev\.tsv, line 1: no column label among sentence"):
        task_in(tmp_path, "sst-2").read("dev", BadRows())
    assert [each.id for each in task_in(tmp_path, "sst-2").read("test", BadRows())] == ["0", "1"]
