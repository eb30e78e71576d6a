import pathlib

import numpy as np
import pytest

from official_bert.kinds.features import EXAMPLE, LABELS, NO_LABEL
from official_bert.kinds.tagging import spec as head
from official_bert.kinds.tagging.spec import Sentence, TaggingSpec
from official_bert.tasks import all_tasks, tagging
from official_bert.tasks.options import TableOptions, TaggingOptions
from official_bert.tasks.task import Task
from official_bert.utils.bad_rows import BadRows
from tests.make import assert_mentions, assert_rejected, list_rows, write_rows, write_text


def make_folder_task(folder: pathlib.Path, labels=None, **options) -> tagging.TaggingTask:
    return tagging.TaggingTask(TaggingOptions(data_dir=str(folder), **options), labels)


def make_table_task(train_file: str, **options) -> Task:
    return all_tasks.make_task("table", TableOptions(label_kind="tagging", train_file=train_file, **options))


@pytest.mark.parametrize(("text", "metric", "note"), [
    ("a B\ncat L\nran O\n", "f1", "scheme BILOU without types"),
    ("a DET\ncat NOUN\n", "accuracy", "the tags (DET, NOUN) do not follow an entity scheme"),
])  # fmt: skip
def test_a_note_explains_how_tags_are_scored(text: str, metric: str, note: str, tmp_path: pathlib.Path):
    write_text(tmp_path / "train.txt", text)
    task = make_folder_task(tmp_path)
    assert task.best_metric == metric
    assert note in " ".join(task.notes())


def test_tags_are_read_from_a_table(tmp_path: pathlib.Path):
    csv = write_text(tmp_path / "a.csv", 'text,label\n"a cat, sat",DET NOUN VERB\na dog,DET NOUN\n')
    task = make_table_task(csv, eval_file=csv, predict_file=csv)
    assert (task.spec.labels, task.eval_splits, task.test_splits) == (("DET", "NOUN", "VERB"), ("dev",), ("test",))
    assert task.read("dev", BadRows())[1] == Sentence(("a", "dog"), ("DET", "NOUN"), 3)
    assert [each.tags for each in task.read("test", BadRows())] == [None, None]
    jsonl = write_rows(tmp_path / "b.jsonl", [{"words": ["a", "hot dog"], "tags": ["DET", "NOUN"]}])
    task = make_table_task(jsonl, text_column="words", label_column="tags", eval_file=csv)
    assert task.read("train", BadRows()) == [Sentence(("a", "hot dog"), ("DET", "NOUN"), 1)]
    assert_rejected((csv, "line 2", "'words', 'tags'", "'text', 'label'"), task.read, "dev", BadRows())


def test_tags_missing_in_training_count_as_errors(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    write_text(tmp_path / "x-ud-train.conllu", "1\ta\ta\tDET\n2\tcat\tcat\tNOUN\n")
    write_text(tmp_path / "x-ud-train.txt", "a cat")
    write_text(tmp_path / "x-ud-dev.conllu", "1\ta\ta\tDET\n2\tran\tran\tVERB\n3\tran\tran\tVERB\n4\tcat\tcat\tNOUN\n")
    task = make_folder_task(tmp_path)
    sentences = task.read("dev", BadRows())
    assert_mentions(capsys.readouterr().out, "2 words", "dev", "VERB")
    assert task.metrics([(["DET", "NOUN", "NOUN", "NOUN"], [1.0] * 4)], sentences) == dict.fromkeys(
        task.score_names, 0.5
    )


def test_tags_are_learned_scored_and_written_for_conlleval(tokenizer, tmp_path: pathlib.Path):
    write_text(tmp_path / "eng.train", "the O\ncat B-X\n\nsat O\n")
    write_text(tmp_path / "eng.testa", "cat B-X\nran O\n\nunaffable O\n")
    task = make_folder_task(tmp_path)
    assert (task.spec.labels, task.best_metric) == (("B-X", "O"), "f1")
    sentences = task.read("dev", BadRows())
    features = task.spec.featurize(sentences, tokenizer, 8)
    assert features.targets[LABELS].tolist() == [NO_LABEL, 0, 1, NO_LABEL, NO_LABEL, 1, *[NO_LABEL] * 3]
    assert features.details[EXAMPLE].tolist() == [0, 1]
    first, other = [9, 0], [0, 9]  # logits
    right = [np.float32([first, first, other, first]), np.float32([first, other, first, first, first])]
    predictions = task.spec.decode(right, features, sentences)
    assert [tags for tags, _ in predictions] == [["B-X", "O"], ["O"]]
    assert {task.metrics(predictions, sentences)[name] for name in ("f1", *task.score_names)} == {1.0}
    (path,) = task.write_predictions(str(tmp_path), "dev", predictions, sentences)
    assert path == str(tmp_path / "predictions_dev.txt")
    assert pathlib.Path(path).read_text() == "cat\tB-X\tB-X\nran\tO\tO\n\nunaffable\tO\tO\n\n"
    assert all(each.correct for each in task.spec.outcomes(predictions, sentences))
    outcomes = task.spec.outcomes([(["B-X", "O"], [0.9, 0.6]), (["O"], [0.5])], sentences)
    assert [each.certainty for each in outcomes] == [0.6, 0.5]  # of the least certain word


def test_predictions_are_written_after_the_expected_tags_or_without_any(tmp_path: pathlib.Path):
    write_text(tmp_path / "test.txt", "the\ncat\n")
    task = make_folder_task(tmp_path, ["N", "V"], tag_column="none")
    assert (task.spec.labels, task.eval_splits, task.test_splits) == (("N", "V"), (), ("test",))
    sentences = task.read("test", BadRows())
    (path,) = task.write_predictions(str(tmp_path), "test", [(["N", "V"], [1.0, 1.0])], sentences)
    assert pathlib.Path(path).read_text() == "the\tN\ncat\tV\n\n"
    tagged = [Sentence(("the", "cat"), ("V", "N"), 1)]
    (path,) = task.write_predictions(str(tmp_path), "test", [(["N", "N"], [1.0, 1.0])], tagged)
    assert pathlib.Path(path).read_text() == "the\tV\tN\ncat\tN\tN\n\n"
    assert_rejected((tmp_path, "train.*", "*.train", "*train*.conllu"), make_folder_task, tmp_path)


def split(words, tokenizer, max_seq_length: int, stride: int | None = None):
    """Returns the windows of sentences with their rows."""
    sentences = [Sentence(tuple(each), None, number) for number, each in enumerate(words, 1)]
    features = TaggingSpec(doc_stride=stride).featurize(sentences, tokenizer, max_seq_length)
    return list_rows(features, head.list_windows(features))


@pytest.mark.parametrize("length", range(3, 13))
def test_windows_contain_every_word_once_and_completely(length: int, tokenizer):
    words = np.random.default_rng(length).choice(["cat", "unaffable", "sunning", "zzzzzzzzz", "\u200b"], 30).tolist()
    windows = split([words], tokenizer, length)
    assert sorted(word for window in windows for word in window.words) == list(range(len(words)))
    for window in windows:
        assert len(window.input_ids) <= length
        for word, position in zip(window.words, window.positions, strict=True):
            kept = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(words[word])[: length - 2] or ["[UNK]"])
            assert window.input_ids[position : position + len(kept)] == kept


def test_tags_come_from_the_window_to_which_a_word_belongs(tokenizer):
    words = ("the", "unaffable", "cat", "sat", "on", "the", "mat")
    sentences = [Sentence(words, None, 1), Sentence(("dog",), None, 2)]
    spec = TaggingSpec(labels=tuple(f"tag {number}" for number in range(8)))
    features = spec.featurize(sentences, tokenizer, 6)
    windows = head.list_windows(features)
    assert len(windows) > 3
    assert features.targets == {}
    assert features.details[EXAMPLE].tolist() == [window.sentence for window in windows]
    logits = [np.full((9, 8), 5.0, np.float32) for _ in windows]  # positions without a word are never read
    for window, scores in zip(windows, logits, strict=True):
        for word, position in zip(window.words, window.positions, strict=True):
            scores[position] = 0.0
            scores[position, word] = np.log(7.0)
    (tags, certainties), (other_tags, _) = spec.decode(logits, features, sentences)
    assert (tags, other_tags) == ([*spec.labels[:7]], ["tag 0"])
    assert certainties == pytest.approx([0.5] * 7)


def test_windows_start_at_word_boundaries_one_stride_apart(tokenizer):
    letters = tokenizer.convert_tokens_to_ids(list("abcdefgh"))
    windows = split([tuple("abcdefgh")], tokenizer, 6, stride=2)
    assert [window.input_ids[1:-1] for window in windows] == [letters[first : first + 4] for first in (0, 2, 4)]
    assert_rejected(("max_seq_length", 2, 3), split, [["cat"]], tokenizer, 2)


@pytest.mark.parametrize(("length", "is_truncated"), [(5, False), (4, True)])
def test_a_word_that_just_fits_is_not_truncated(length: int, is_truncated: bool, tokenizer):
    """The word un ##aff ##able is between [CLS] and [SEP]."""
    sentences = [Sentence(("unaffable",), None, 1), Sentence(("the", "cat", "sat"), None, 2)]
    assert TaggingSpec().featurize(sentences, tokenizer, length).is_truncated.tolist() == [is_truncated, False]
    assert_mentions(TaggingSpec().describe_truncation(1, 2, length), "1 of 2 texts", length - 2)


def test_the_margin_of_a_sentence_is_the_minimum_over_its_windows(tokenizer):
    sentences = [Sentence(tuple("abcdefgh"), None, 1)]
    features = TaggingSpec().featurize(sentences, tokenizer, 6)
    assert len(features) > 1
    for least in range(len(features)):
        outputs = [np.tile(np.float32([0.0, 0.1 if least == row else 5.0]), (6, 1)) for row in range(len(features))]
        margins = TaggingSpec(labels=("X", "Y")).margins(outputs, features, sentences)
        assert margins == pytest.approx([np.tanh(0.05)], rel=1e-4)


def test_files_are_found_by_the_names_of_known_data_sets(tmp_path: pathlib.Path):
    names = ["eng.train", "eng.testa", "eng.testb"]
    for name in names:
        write_text(tmp_path / name, f"{name} X\nb O\n")
    task = make_folder_task(tmp_path)
    assert (task.eval_splits, task.test_splits) == (("dev", "test"), ("test",))
    assert [task.read(split, BadRows())[0].words[0] for split in ("train", "dev", "test")] == names
    assert make_folder_task(tmp_path, tag_column="none", labels=["O", "X"]).eval_splits == ()
    (tmp_path / "eng.testb").unlink()
    task = make_folder_task(tmp_path)
    assert (task.eval_splits, task.test_splits) == (("dev",), ())
    write_text(tmp_path / "other" / "test.txt", "a X\nb O\n")  # predicted without a dev file, too
    task = make_folder_task(tmp_path / "other", labels=["O", "X"])
    assert (task.eval_splits, task.test_splits) == (("dev", "test"), ("test",))
    write_text(tmp_path / "other" / "train.txt", "a Z\n\nb O\n")
    assert_rejected(("line 1", "'Z'", "O, X"), task.read, "train", BadRows())
