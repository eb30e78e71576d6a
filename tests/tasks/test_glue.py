"""GLUE and XNLI, and the table of predictions for whole texts, which other tasks write, too."""

import csv
import pathlib

import numpy as np
import pytest

from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.kinds.text_spec import TextExample, TextSpec
from official_bert.tasks import all_tasks, glue
from official_bert.tasks.options import GLUE, XNLI, GlueOptions, XnliOptions
from official_bert.utils.bad_rows import BadRows
from tests.make import assert_rejected, write_text

# Number of examples in each part of the release, if available here.
ROWS = {"CoLA": (8551, 1043, 1063), "MRPC": (3668, 408, 1725), "STS-B": (5749, 1500, 1379), "RTE": (2490, 277, 3000)}
ROWS |= {"WNLI": (635, 71, 146), "QNLI": (None, 5463, None)}


def make_task(name: str, folder: pathlib.Path) -> glue.GlueTask:
    return glue.GlueTask(name, GlueOptions(data_dir=str(folder)))


@pytest.mark.parametrize("folder", ROWS)
def test_all_examples_of_the_release_are_read(folder, test_data):
    task = make_task(folder.lower(), test_data / "glue" / folder)
    for split, count in zip(("train", "dev", "test"), ROWS[folder], strict=True):
        if count is not None:
            examples = task.read(split, BadRows())
            assert len(examples) == count
            assert all(each.text_a and (each.text_b is not None) == task.spec.pair for each in examples)
            assert all((each.label is None) == (split == "test") for each in examples)


@pytest.mark.parametrize(("name", "split", "text", "expected"), [
    # A byte order mark, quotes without a special meaning, Windows line endings, and an extra column.
    ("mrpc", "train",
     '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t5\t6\t" He said\tShe " said\r\n0\t7\t8\tx\ty\tmore\r\n',
     [TextExample("0", '" He said', 'She " said', 1), TextExample("1", "x", "y", 0)]),
    ("mnli", "dev_matched",
     "index\tpromptID\tsentence1\tsentence2\tlabel1\tgold_label\n4\tp\tA man.\tA cat.\tneutral\tcontradiction\n",
     [TextExample("4", "A man.", "A cat.", 0)]),
    ("qqp", "train", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n9\t1\t2\tWho?\tWhat?\t1\n",
     [TextExample("0", "Who?", "What?", 1)]),
    # Without a header, the first line is a row, and the third column is ignored.
    ("cola", "train", "gj04\t1\t\tA cat sat.\nbc01\t0\t*\tSat a cat.\n",
     [TextExample("0", "A cat sat.", None, 1), TextExample("1", "Sat a cat.", None, 0)]),
    ("qnli", "dev", "index\tquestion\tsentence\tlabel\n7\tA?\tB.\tentailment\n", [TextExample("7", "A?", "B.", 0)]),
    ("wnli", "dev", "index\tsentence1\tsentence2\tlabel\n7\tA.\tB.\t1\n", [TextExample("7", "A.", "B.", 1)]),
    ("sts-b", "dev", "index\tsentence1\tsentence2\tscore\n7\tA.\tB.\t4.8\n", [TextExample("7", "A.", "B.", 4.8)]),
    ("ax", "test", "index\tsentence1\tsentence2\n0\tA.\tB.\n", [TextExample("0", "A.", "B.")]),
    # Empty rows to predict are predicted.
    ("sst-2", "test", "index\tsentence\n0\ta film\n1\t \n", [TextExample("0", "a film"), TextExample("1", " ")]),
    ("mnli", "test_matched", "index\tsentence1\tsentence2\n0\tA.\t \n", [TextExample("0", "A.", " ")]),
])  # fmt: skip
def test_files_are_read_by_their_known_columns(name, split, text, expected, tmp_path):
    write_text(tmp_path / f"{'diagnostic' if name == 'ax' else split}.tsv", text)
    assert make_task(name, tmp_path).read(split, BadRows()) == expected


def test_a_bad_row_is_an_error_or_is_counted(tmp_path, capsys):
    task = make_task("sst-2", tmp_path)
    for row, *names in (("a text", 1, 2, "sentence", "label"), ("a text\t2", "'2'", "0, 1"), (" \t1", "empty")):
        path, bad_rows = write_text(tmp_path / "train.tsv", f"sentence\tlabel\ngood\t1\n{row}\n"), BadRows("skip")
        assert_rejected((path, "line 3", *names, "--on_bad_row=skip"), task.read, "train", BadRows())
        assert [example.text_a for example in task.read("train", bad_rows)] == ["good"]
        assert bad_rows.counts == {path: 1}
        assert "line 3" in capsys.readouterr().err


MISFITS = [
    ("rte", "train", None, ("train.tsv", "split")),
    ("ax", "train", None, ("train", "test", "mnli", "--init")),
    ("rte", "train", "index\ttext\n", ("line 1", "'sentence1', 'sentence2'", "'index', 'text'")),
    ("sst-2", "dev", "sentence\na film\n", ("line 1", "'label'", "'sentence'")),
    ("mnli", "dev_mismatched", "sentence1\tsentence2\na\tb\n", ("line 1", "'gold_label'", "'sentence1', 'sentence2'")),
    ("sst-2", "dev", "sentence\tlabel\n \t1\n", ("line 2", "empty", "sentence")),
    ("rte", "train", "sentence1\tsentence2\tlabel\na\t \tentailment\n", ("line 2", "sentence1", "sentence2")),
    ("sts-b", "dev", "sentence1\tsentence2\tscore\na\tb\t5.5\n", ("line 2", "'5.5'", 0, 5)),
]


@pytest.mark.parametrize(("name", "split", "text", "names"), MISFITS)
def test_invalid_files_columns_and_scores_are_named(name, split, text, names, tmp_path):
    path = () if text is None else (write_text(tmp_path / f"{split}.tsv", text),)
    assert_rejected((*path, *names), make_task(name, tmp_path).read, split, BadRows())


_PROBABILITIES = [[0.1, 0.7, 0.2], [0.8, 0.1, 0.1]]


SUBMISSIONS = [
    ("mnli", "test_mismatched", _PROBABILITIES, "MNLI-mm.tsv", ("entailment", "contradiction")),
    ("sts-b", "test", [-0.2, 5.1], "STS-B.tsv", ("0", "5")),
    ("sts-b", "test", [2.34567, 5.0], "STS-B.tsv", ("2.34567", "5")),
    ("mnli", "dev_matched", _PROBABILITIES, None, ()),
]


@pytest.mark.parametrize(("name", "split", "predictions", "file", "answers"), SUBMISSIONS)
def test_submissions_have_the_format_of_the_leaderboard(name, split, predictions, file, answers, tmp_path):
    examples = [TextExample("0", "a", "b"), TextExample("1", "c", "d")]
    paths = make_task(name, tmp_path).write_predictions(str(tmp_path), split, np.array(predictions), examples)
    names = [f"predictions_{split}.tsv", *([file] if file else [])]
    assert [pathlib.Path(path).name for path in paths] == names
    assert (tmp_path / names[0]).read_text().startswith("id\tprediction\texpected")
    if file:
        assert (tmp_path / file).read_text() == "index\tprediction\n0\t{}\n1\t{}\n".format(*answers)


@pytest.mark.parametrize("name", GLUE)
def test_every_task_scores_a_perfect_prediction_best(name, tmp_path):
    task, numbers = make_task(name, tmp_path), np.arange(9) % len(glue.SPECS[name].labels or range(9))
    correlated = {"cola": "matthews_correlation", "ax": "matthews_correlation", "sts-b": "pearson"}
    assert task.best_metric == correlated.get(name, "accuracy")
    examples = [TextExample(str(i), "a", "b", number) for i, number in enumerate(numbers.tolist())]
    predictions = 1.0 * numbers if task.spec.is_value else np.eye(len(task.spec.labels))[numbers]
    found = task.metrics(predictions, examples)
    assert {task.best_metric} <= {*task.score_names} <= {*found}
    assert found == pytest.approx(dict.fromkeys(found, 1.0))
    assert all(outcome.correct for outcome in task.spec.outcomes(predictions, examples))


_ANSWERS, _VALUES = np.eye(2)[[1, 1, 0, 0, 1]], np.array([0.0, 1.0, 2.0, 5.0])
_CORRELATIONS = {"pearson": np.corrcoef(_VALUES, _VALUES**3)[0, 1], "spearman": 1.0}


@pytest.mark.parametrize(("name", "predictions", "labels", "expected"), [
    ("mrpc", _ANSWERS, (1, 0, 0, 1, 1), {"accuracy": 3 / 5, "f1": 2 / 3}),
    ("cola", _ANSWERS, (1, 0, 0, 1, 1), {"matthews_correlation": 1 / 6, "accuracy": 3 / 5}),
    ("sts-b", _VALUES**3, _VALUES, _CORRELATIONS),
])  # fmt: skip
def test_partly_correct_answers_are_scored_as_in_the_original(name, predictions, labels, expected, tmp_path):
    found = make_task(name, tmp_path).metrics(predictions, [TextExample("", "a", "b", label) for label in labels])
    assert {score: found[score] for score in expected} == pytest.approx(expected)


def test_the_matched_split_selects_the_best_model(tmp_path):
    task = make_task("mnli", tmp_path)
    assert task.eval_splits == ("dev_matched", "dev_mismatched")
    assert task.test_splits == ("test_matched", "test_mismatched")
    assert make_task("ax", tmp_path).eval_splits == ()


def write_predictions(folder, head: TextSpec, predictions, examples) -> list[dict[str, str]]:
    task = make_task("sst-2", folder)
    task.spec = head
    (path,) = task.write_predictions(str(folder), "dev", predictions, examples)
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_small_numbers_are_not_rounded_to_nothing_and_white_space_becomes_a_space(tmp_path):
    head, predictions = ClassificationSpec(labels=("a\tb", "c\n d")), np.array([[1.2345678e-9, 1 - 1.2345678e-9]])
    (row,) = write_predictions(tmp_path, head, predictions, [TextExample("q\t 1", "a", label=0)])
    found = row["id"], row["prediction"], row["expected"], row["probability of a b"]
    assert found == ("q 1", "c d", "a b", "1.234568e-09")
    (row,) = write_predictions(tmp_path, RegressionSpec(), np.array([1.2345678e-9]), [TextExample("", "a", label=1e6)])
    assert (row["prediction"], row["expected"]) == ("1.234568e-09", "1000000")


@pytest.mark.parametrize("label", [None, 0])  # a test part without labels, and a dev part
def test_a_prediction_below_min_confidence_is_empty_as_in_exports(tmp_path, label):
    head = ClassificationSpec(labels=("a", "b"), min_confidence=0.9)
    predictions, examples = np.array([[0.95, 0.05], [0.2, 0.8], [0.1, 0.9]]), [TextExample("", "text", label=label)] * 3
    predicted = [row["prediction"] for row in write_predictions(tmp_path, head, predictions, examples)]
    assert predicted == head.named_answers(predictions, examples)["label"] == ["a", "", "b"]


_XNLI = """language\tgold_label\tsentence1_binary_parse\tsentence1\tsentence2\tpromptID
ar\tneutral\t( a )\tكلب\tقط\t1
zh\tneutral\t( a )\t狗\t猫\t1
zh\tcontradiction\t( a )\t"日\t月\t1
"""


def read_xnli(folder, split, dev=_XNLI, bad_rows=None, **options):
    """Reads a split of an XNLI folder with translated training data and `dev` as the two other splits."""
    translated = "premise\thypo\tlabel\n狗 跑\t猫\tcontradictory\n日\t月\tneutral\n"
    write_text(folder / "multinli/multinli.train.zh.tsv", translated)
    for name in ("dev", "test"):
        write_text(folder / f"xnli.{name}.tsv", dev)
    task = all_tasks.make_task(XNLI, XnliOptions(data_dir=str(folder), **options))
    assert task.spec.labels == ("contradiction", "entailment", "neutral")
    return task.read(split, bad_rows or BadRows())


def test_the_translated_training_data_and_the_rows_of_the_language_are_read(tmp_path):
    # Chinese, as in the original.
    assert read_xnli(tmp_path, "train") == [TextExample("0", "狗 跑", "猫", 0), TextExample("1", "日", "月", 2)]
    dev = [TextExample("1", "狗", "猫", 2), TextExample("2", '"日', "月", 0)]
    assert [read_xnli(tmp_path, split) for split in ("dev", "test")] == [dev, dev]
    blank = read_xnli(tmp_path, "test", _XNLI.replace("狗", " "))  # every row of the test data is predicted
    assert [each.text_a for each in blank] == [" ", '"日']
    assert read_xnli(tmp_path, "dev", language="ar") == [TextExample("0", "كلب", "قط", 2)]


_MAYBE = "language\tgold_label\tsentence1\tsentence2\nzh\tmaybe\ta\tb\n"


@pytest.mark.parametrize(("split", "options", "names"), [
    ("train", {"language": "de"}, ("multinli.train.de.tsv", "--data_dir")),
    ("dev", {"language": "de"}, ("xnli.dev.tsv", "--language=de", "ar, zh")),
    ("dev", {"dev": _XNLI.replace("contradiction", "maybe")}, ("xnli.dev.tsv", "line 4", "'maybe'", "neutral")),
    *[("dev", {"dev": _XNLI.replace(word, " ")}, ("dev.tsv", "line 3", "sentence1", "sentence2")) for word in "狗猫"],
    ("test", {"dev": _MAYBE, "bad_rows": BadRows("skip", silent=True)},
     ("xnli.test.tsv", "--language=zh", 1, "line 2", "'maybe'")),
])  # fmt: skip
def test_missing_and_invalid_files_of_xnli_are_named(split, options, names, tmp_path):
    assert_rejected(names, read_xnli, tmp_path, split, **options)
