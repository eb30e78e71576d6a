import functools
import json
import pathlib

import numpy as np
import pytest

from official_bert.kinds.features import LABELS
from official_bert.kinds.multiple_choice.spec import Example, MultipleChoiceSpec
from official_bert.tasks import multiple_choice
from official_bert.tasks.multiple_choice import MultipleChoiceTask
from official_bert.tasks.options import MultipleChoiceOptions
from official_bert.utils.bad_rows import BadRows
from tests.make import assert_mentions, assert_rejected, write_text
from tests.tasks.bad_rows import read_kept

HEADER = ",video-id,sent1,sent2,ending0,ending1,ending2,ending3,label\n"
_SWAG = {"sent1": "a", "sent2": "b", "ending0": "c", "ending1": "d", "ending2": "e", "ending3": "f", "label": 0}
EXAMPLE = Example('The "cat",\nsat.', ("The dog ran", "The dog sat", "The dog walked", "The dog played"), 2)
# A good file of each format, and its example.
GOOD = {
    "a.csv": (HEADER + '7,v,"The ""cat"",\nsat.",The dog,ran,sat,walked,played,2\n', EXAMPLE),
    "a.jsonl": (json.dumps(_SWAG) + "\n\n", Example("a", ("b c", "b d", "b e", "b f"), 0)),
    "a.tsv": ('o\tsay "p\ta\tb\tc\td\t3\r\n', Example('say "p', ("a", "b", "c", "d"), 3)),
}

read = functools.partial(read_kept, multiple_choice.read)


def make_task(name: str, folder: pathlib.Path) -> MultipleChoiceTask:
    return MultipleChoiceTask(name, MultipleChoiceOptions(data_dir=str(folder)))


@pytest.mark.parametrize(("name", "row", "names"), [
    ("a.csv", "7,v,p,s,a,b,c,d", ("line 4", 8, 9, "video-id", "sent1")),  # the first row has two lines
    *[("a.csv", f"7,v,p,s,a,b,c,d,{label}", ("line 4", "label", f"'{label[:60]}'", "0 to 3"))
      for label in ("4", "-1", "--3", "1.0", "9" * 5000, "gold")],
    ("a.csv", "7,v,p,s,a,b,c,d,", ("line 4", "label", "missing")), ("a.csv", "7,v, ,s,a,b,c,d,0", ("line 4", "prompt")),
    ("a.csv", "7,v,p,s,a,,c,d,0", ("line 4", "ending 1")),
    ("a.jsonl", json.dumps({**_SWAG, "label": -1}), ("line 3", "label", "missing")),
    ("a.tsv", "o\tp\ta\tb\tc\t1", ("line 2", 6, 7, "category", "sent1", "ending0", "ending1")),
])  # fmt: skip
def test_an_invalid_row_is_reported_and_the_rest_is_read(name: str, row: str, names, tmp_path: pathlib.Path):
    good, example = GOOD[name]
    path = write_text(tmp_path / name, f"{good}{row}\n{good.removeprefix(HEADER)}")
    examples, (problem,) = read(path)
    assert examples == [example, example]
    assert_mentions(problem, path, *names)


def test_examples_without_labels_are_read_for_prediction(tmp_path: pathlib.Path):
    example, row = Example("a", ("b c", "b d", "b e", "b f"), None), json.dumps({**_SWAG, "label": -1})
    for name, text in (("a.jsonl", row), ("a.csv", "sent1,sent2,ending0,ending1,ending2,ending3\na,b,c,d,e,f")):
        assert read(write_text(tmp_path / name, text + "\n"), need_labels=False) == ([example], [])
    for split in ("train", "val", "test"):
        write_text(tmp_path / f"{split}.jsonl", row + "\n")
    assert make_task("swag", tmp_path).read("test", BadRows()) == [example]
    for split, name in (("train", "train.jsonl"), ("dev", "val.jsonl")):
        assert_rejected((name, "line 1", "label"), make_task("swag", tmp_path).read, split, BadRows())


def test_files_of_another_layout_and_missing_folders_are_refused(tmp_path: pathlib.Path):
    files = [("a.csv", HEADER, "examples"), ("a.txt", HEADER, "*.csv", "*.jsonl", "*.tsv")]
    other = ("a.csv", "sent1,ending1,ending2,ending3,label\n", "line 1", "'sent2', 'ending0'", "'sent1'")
    for name, text, *names in (*files, other):
        path = write_text(tmp_path / name, text)
        assert_rejected((path, *names), read, path)
    nowhere = tmp_path / "nowhere"
    assert_rejected(("--data_dir", nowhere), make_task("swag", nowhere).read, "train", BadRows())


@pytest.mark.parametrize(("path", "count"), [("codah/full_data.tsv", 2776), ("swag/hf_sample_10rows.jsonl", 10)])
def test_real_data_sets_are_read_completely(path: str, count: int, test_data: pathlib.Path):
    examples, problems = read(str(test_data / path))
    assert (len(examples), problems) == (count, [])


def test_choices_keep_their_four_sequences_together(tokenizer, tmp_path: pathlib.Path):
    task = make_task("codah", tmp_path)
    write_text(tmp_path / "dev.tsv", "o\tthe cat\tran\tsat\ton\tin\t2\no\tthe dog\tran\tsat\ton\tin the sun\t0\n")
    assert (task.eval_splits, make_task("swag", tmp_path).eval_splits) == (("dev", "test"), ("dev",))
    examples = task.read("dev", BadRows())
    features = task.spec.featurize(examples, tokenizer, 8)
    assert (len(features), features.choices) == (2, 4)
    assert features.targets[LABELS].tolist() == [2, 0]
    assert np.diff(features.splits).tolist() == [6] * 7 + [8]
    predictions = task.spec.decode([np.eye(4)[2], np.eye(4)[1]], features, examples)
    assert task.metrics(predictions, examples) == dict.fromkeys(task.score_names, 0.5)
    (path,) = task.write_predictions(str(tmp_path), "dev", predictions, examples)
    assert pathlib.Path(path).read_text() == "2\n1\n"
    outcomes = [(each.expected, each.predicted, each.correct) for each in task.spec.outcomes(predictions, examples)]
    assert outcomes == [("on", "on", True), ("ran", "sat", False)]
    unlabelled = [Example("the cat", examples[0].endings, None), examples[1]]
    assert task.spec.featurize(unlabelled, tokenizer, 8).targets == {}
    (outcome, _) = task.spec.outcomes(np.eye(4)[[0, 0]], unlabelled)
    assert not outcome.correct
    assert_rejected(("max_seq_length", 3, 4), task.spec.featurize, examples, tokenizer, 3)


def test_each_ending_is_packed_with_the_prompt(tokenizer):
    example = Example("the cat sat", ("on the mat", "in sun", "ran", "walked"), 0)
    spec = MultipleChoiceSpec()
    features = spec.featurize([example], tokenizer, 7)
    # The first ending, not the last, is the longest.
    assert [spec.featurize([example], tokenizer, length).num_truncated for length in (7, 8, 9)] == [1, 1, 0]
    expected = "the cat [SEP] on the", "the cat [SEP] in sun", "the cat sat [SEP] ran", "the cat [SEP] walk ##ed"
    for row, tokens in enumerate(expected):
        packed = f"[CLS] {tokens} [SEP]".split()
        assert tokenizer.convert_ids_to_tokens(features.input_ids[7 * row : 7 * row + 7]) == packed
        first = packed.index("[SEP]") + 1  # the length of the first segment
        assert features.segment_ids[7 * row : 7 * row + 7].tolist() == [0] * first + [1] * (7 - first)
    assert features.splits.tolist() == [0, 7, 14, 21, 28]


def test_rows_and_columns_of_two_examples_are_distinguished():
    spec, expected = MultipleChoiceSpec(num_choices=2), [Example("a", ("b", "c"), 1), Example("d", ("e", "f"), 0)]
    rows = ("a", ["b", "c"]), ("d", ["e", "f"])
    for x in (rows, list(rows), (["a", "d"], [["b", "c"], ["e", "f"]])):
        assert spec.make_examples(x, [1, 0]) == expected


@pytest.mark.parametrize(("x", "names"), [
    (["a", "b"], ("x[0]", "'a'", 4)), ([("a", None)], ("x[0]", None)),
    ((["a", "b", "c"], [EXAMPLE.endings] * 2), ("x[1]", 2, 3)), ([("a", EXAMPLE.endings[:3])], ("x[0]", 3, 4)),
])  # fmt: skip
def test_rows_without_a_prompt_and_endings_are_reported(x, names):
    assert_rejected(names, MultipleChoiceSpec().make_examples, x, None)
