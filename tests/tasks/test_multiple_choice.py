import csv
import functools
import itertools
import json
import pathlib
import re

import numpy as np
import pytest

from official_bert.errors import UserError
from official_bert.kinds.features import LABELS
from official_bert.kinds.multiple_choice import spec as head
from official_bert.kinds.multiple_choice.spec import Example
from official_bert.tasks import multiple_choice
from official_bert.tasks.options import MultipleChoiceOptions
from official_bert.tasks.task import DEV, TRAIN
from official_bert.tokenization.exact import FullTokenizer
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils.bad_rows import BadRows
from tests.make import refusal, write_text
from tests.tasks.bad_rows import read_kept

read = functools.partial(read_kept, multiple_choice.read)


HEADER = ["", "video-id", "sent1", "sent2", "ending0", "ending1", "ending2", "ending3", "label"]


ROW = ["7", "v", 'The "cat",\nsat.', "The dog", "ran", "sat", "walked", "played", "2"]


ENDINGS = ("The dog ran", "The dog sat", "The dog walked", "The dog played")


def swag(path: pathlib.Path, *rows: list[str], header: list[str] = HEADER) -> str:
    with path.open("w", newline="", encoding="utf-8") as writer:
        csv.writer(writer).writerows([header, *rows])
    return str(path)


def test_swag_is_read_from_csv_with_quotes_and_newlines(tmp_path: pathlib.Path):
    path = swag(tmp_path / "a.csv", ROW, ROW)
    expected = Example('The "cat",\nsat.', ENDINGS, 2)
    assert read(path) == ([expected, expected], [])


def test_swag_is_read_from_json_lines(tmp_path: pathlib.Path):
    row = {"sent1": "a", "sent2": "b", "ending0": "c", "ending1": "d", "ending2": "e", "ending3": "f", "label": 0}
    path = write_text(tmp_path / "a.jsonl", json.dumps(row) + "\n\n" + json.dumps(row | {"label": -1}) + "\n")
    known = Example("a", ("b c", "b d", "b e", "b f"), 0)
    assert read(path, need_labels=False)[0] == [known, Example("a", known.endings, None)]
    assert read(path) == ([known], [f"{path}, line 3: the label is missing"])


def test_a_test_set_without_labels_is_read_for_prediction(tmp_path: pathlib.Path):
    path = swag(tmp_path / "a.csv", ROW[:-1], header=HEADER[:-1])
    assert read(path, need_labels=False)[0][0].label is None
    assert "line 2: the label is missing; correct it" in refusal(multiple_choice.read, path, BadRows())


@pytest.mark.parametrize(("row", "reason"), [
    (ROW[:-1], "line 4: 8 columns; expected 9: , video-id, sent1, "),
    ([*ROW, "more"], "line 4: 10 columns; expected 9: , video-id, sent1, "),
    ([*ROW[:-1], "4"], "line 4: the label is 4; expected 0 to 3"),
    ([*ROW[:-1], "-1"], "line 4: the label is -1; expected 0 to 3"),
    ([*ROW[:-1], "--3"], "line 4: the label is '--3'; expected 0 to 3"),
    ([*ROW[:-1], "9" * 5000], f"line 4: the label is '{'9' * 60}'; expected 0 to 3"),
    ([*ROW[:-1], "gold"], "line 4: the label is 'gold'; expected 0 to 3"),
    ([*ROW[:2], " ", *ROW[3:]], "line 4: the prompt is empty"),
    ([*ROW[:5], "", *ROW[6:]], "line 4: ending 1 is empty"),
])  # fmt: skip
def test_a_broken_row_is_named_by_its_line_and_the_rest_is_read(row: list[str], reason: str, tmp_path: pathlib.Path):
    path = swag(tmp_path / "a.csv", ROW, row, ROW)  # the first row has two lines
    examples, problems = read(path)
    assert len(examples) == 2
    assert [problem[: len(f"{path}, {reason}")] for problem in problems] == [f"{path}, {reason}"]


@pytest.mark.parametrize(("line", "reason"), [
    ("o\tp\ta\tb\tc\t1", "6 columns; expected 7: category, sent1, ending0, ending1, ending2, ending3, label"),
    ("o\tp\ta\tb\tc\td\t1.0", "the label is '1.0'"),
    ("o\tp\ta\t\tc\td\t1", "ending 1 is empty"),
])  # fmt: skip
def test_a_broken_line_of_codah_is_named(line: str, reason: str, tmp_path: pathlib.Path):
    path = write_text(tmp_path / "a.tsv", f'o\tsay "p\ta\tb\tc\td\t3\r\n{line}\n')
    examples, (problem,) = read(path)
    assert examples == [Example('say "p', ("a", "b", "c", "d"), 3)]
    assert problem.startswith(f"{path}, line 2: {reason}")


@pytest.mark.parametrize("line", ["[" * 100_000, '{"sent1": ' + "1" * 5000 + "}", '{"sent1": NaN}'])
def test_json_that_cannot_be_read_is_a_bad_row(line: str, tmp_path: pathlib.Path):
    path = write_text(tmp_path / "a.jsonl", json.dumps(dict(zip(HEADER, ROW, strict=True))) + f"\n{line}\n")
    examples, (problem,) = read(path)
    assert len(examples) == 1
    assert problem.startswith(f"{path}, line 2: not valid JSON: ")


def test_files_of_another_layout_are_refused(tmp_path: pathlib.Path):
    with pytest.raises(UserError, match="line 1: no column sent2, ending0 among sent1, ending1"):
        read(swag(tmp_path / "a.csv", header=["sent1", "ending1", "ending2", "ending3", "label"]))
    assert "expected SWAG's" in refusal(read, swag(tmp_path / "a.txt"))
    assert "has no examples" in refusal(read, swag(tmp_path / "a.csv"))


def test_real_sets_are_read_whole(test_data: pathlib.Path):
    examples, problems = read(str(test_data / "codah" / "full_data.tsv"))
    assert (len(examples), problems) == (2776, [])
    examples, problems = read(str(test_data / "swag" / "hf_sample_10rows.jsonl"))
    assert (len(examples), problems) == (10, [])


def test_a_folder_that_is_not_there_is_refused(tmp_path: pathlib.Path):
    with pytest.raises(UserError, match="nowhere, which is not a folder"):
        multiple_choice.MultipleChoiceTask("swag", MultipleChoiceOptions(data_dir=str(tmp_path / "nowhere"))).read(
            TRAIN, BadRows()
        )


def test_choices_keep_their_four_sequences_together(tokenizer: FastTokenizer, tmp_path: pathlib.Path):
    task = multiple_choice.MultipleChoiceTask("codah", MultipleChoiceOptions(data_dir=str(tmp_path)))
    (tmp_path / "dev.tsv").write_text("o\tthe cat\tran\tsat\ton\tin\t2\no\tthe dog\tran\tsat\ton\tin the sun\t0\n")
    examples = task.read(DEV, BadRows())
    features = task.head.featurize(examples, tokenizer, 8)
    assert (len(features), features.choices) == (2, 4)
    assert features.targets[LABELS].tolist() == [2, 0]
    assert np.diff(features.splits).tolist() == [6] * 7 + [8]
    predictions = task.head.decode([np.eye(4)[2], np.eye(4)[1]], features, examples)
    assert task.metrics(predictions, examples) == {"accuracy": 0.5}
    (path,) = task.write_predictions(str(tmp_path), DEV, predictions, examples)
    assert pathlib.Path(path).read_text() == "2\n1\n"
    assert [each.correct for each in task.head.outcomes(predictions, examples)] == [True, False]
    assert "max_seq_length is 3" in refusal(task.head.featurize, examples, tokenizer, 3)


def test_each_ending_is_packed_with_the_prompt(vocab_file: str):
    tokenizer = FullTokenizer(vocab_file)
    example = Example("the cat sat", ("on the mat", "in sun", "ran", "walked"), 0)
    spec = head.MultipleChoiceSpec()
    features = spec.featurize([example], tokenizer, 7)
    # The first ending, not the last, is the longest.
    assert [spec.featurize([example], tokenizer, length).num_truncated for length in (7, 8, 9)] == [1, 1, 0]
    packed = list(itertools.pairwise(features.splits))
    tokens = [" ".join(tokenizer.convert_ids_to_tokens(features.input_ids[start:end])) for start, end in packed]
    assert tokens == [
        "[CLS] the cat [SEP] on the [SEP]",
        "[CLS] the cat [SEP] in sun [SEP]",
        "[CLS] the cat sat [SEP] ran [SEP]",
        "[CLS] the cat [SEP] walk ##ed [SEP]",
    ]
    segments = [features.segment_ids[start:end].tolist() for start, end in packed]
    assert segments == [[0] * 4 + [1] * 3] * 2 + [[0] * 5 + [1] * 2, [0] * 4 + [1] * 3]


def test_the_highest_score_is_the_choice():
    choices = head.choose_endings(np.array([[0, 3, 1, 2.0], [9, 3, 1, 2.0]]))
    assert choices == [1, 0]


@pytest.mark.parametrize(("x", "message"), [
    (["a", "b"], r"x\[0\] is 'a'; expected a prompt and its 4 endings"),
    ([("a", None)], r"x\[0\] is None; expected a list"),
    ((["a", "b"], [ENDINGS]), r"x\[1\] has 1 values for 2 examples"),
    ([("a", ENDINGS[:3])], r"x\[0\] has 3 endings; expected 4"),
])  # fmt: skip
def test_rows_that_are_no_prompt_with_endings_are_named(x, message: str):
    assert re.search(message, refusal(head.MultipleChoiceSpec().examples, x, None))
