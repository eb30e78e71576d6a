import functools
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from hypothesis import given
from hypothesis import strategies as st

from official_bert.kinds.features import EXAMPLE, LABELS, NO_LABEL
from official_bert.kinds.tagging import spec as head
from official_bert.kinds.tagging.spec import Sentence, TaggingSpec
from official_bert.tasks import all_tasks, conll, tagging
from official_bert.tasks.options import TableOptions, TaggingOptions
from official_bert.tasks.task import DEV, TEST, Task
from official_bert.tokenization.exact import FullTokenizer
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils import tables
from official_bert.utils.bad_rows import BadRows
from tests.make import list_rows, refusal, write_text
from tests.stored_texts import prepare_tfds_rows
from tests.tasks.bad_rows import KeptRows, read_kept


@pytest.fixture
def tokenizer(vocab_file: str) -> FullTokenizer:
    return FullTokenizer(vocab_file)


def test_how_tags_are_scored_is_said(tmp_path: pathlib.Path):
    write_text(tmp_path / "train.txt", "a B\ncat L\nran O\n")
    task = tagging.FolderTaggingTask(TaggingOptions(data_dir=str(tmp_path)))
    assert task.best_metric == "f1"
    (note,) = task.notes()
    assert "BILOU without types" in note
    write_text(tmp_path / "train.txt", "a DET\ncat NOUN\n")
    task = tagging.FolderTaggingTask(TaggingOptions(data_dir=str(tmp_path)))
    assert task.best_metric == "accuracy"
    (note,) = task.notes()
    assert note.startswith("the tags (DET, NOUN) do not follow an entity scheme")


def table_task(**more: Any) -> Task:
    return all_tasks.make_task("table", TableOptions(label_kind="tagging", **more))


def test_tags_come_from_a_table(tmp_path: pathlib.Path):
    csv, jsonl = tmp_path / "a.csv", tmp_path / "b.jsonl"
    csv.write_text('text,label\n"a cat, sat",DET NOUN VERB\na dog,DET NOUN\n')
    jsonl.write_text(json.dumps({"words": ["a", "hot dog"], "tags": ["DET", "NOUN"]}) + "\n")
    task = table_task(train_file=str(csv), eval_file=str(csv), predict_file=str(csv))
    assert task.head.labels == ("DET", "NOUN", "VERB")
    assert (task.eval_splits, task.test_splits) == (("dev",), ("test",))
    sentences = task.read("dev", BadRows())
    assert sentences[1] == Sentence(("a", "dog"), ("DET", "NOUN"), 3)
    assert [each.tags for each in task.read("test", BadRows())] == [None, None]
    task = table_task(train_file=str(jsonl), text_column="words", label_column="tags")
    assert task.read("train", BadRows()) == [Sentence(("a", "hot dog"), ("DET", "NOUN"), 1)]
    csv.write_text("text,label\na cat,DET NOUN\na dog,DET\nthe dog,DET X\n")
    task = table_task(train_file=str(jsonl), text_column="words", label_column="tags", eval_file=str(csv))
    assert "a.csv, line 2: no column words, tags among text, label" in refusal(task.read, "dev", BadRows())
    task = table_task(train_file=str(csv))
    bad_rows = KeptRows()
    conll.read_rows(tables.read_rows(str(csv), bad_rows), "a.csv", bad_rows, "text", "label", ["DET", "NOUN"])
    assert bad_rows.problems == [
        "a.csv, line 3: 2 words and 1 tags; expected a tag for each word",
        "a.csv, line 4: unknown tag X; expected one of DET, NOUN",
    ]


def test_tags_come_from_tensorflow_datasets(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    name = prepare_tfds_rows(
        tmp_path, [{"tokens": ["EU", "rejects"], "ner": [1, 0]}, {"tokens": ["it"], "ner": [0]}],
        tokens=tfds.features.Sequence(tfds.features.Text()),
        ner=tfds.features.Sequence(tfds.features.ClassLabel(names=["O", "B-ORG"])),
    )  # fmt: skip
    task = table_task(train_file=f"tfds:{name}", text_column="tokens", label_column="ner")
    assert task.head.labels == ("B-ORG", "O")
    assert [(each.words, each.tags) for each in task.read("train", BadRows())] == [
        (("EU", "rejects"), ("B-ORG", "O")), (("it",), ("O",))
    ]  # fmt: skip


def test_a_tag_that_training_lacks_counts_as_wrong(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "x-ud-train.conllu").write_text("1\ta\ta\tDET\n2\tcat\tcat\tNOUN\n")
    (tmp_path / "x-ud-train.txt").write_text("a cat")
    (tmp_path / "x-ud-dev.conllu").write_text("1\ta\ta\tDET\n2\tran\tran\tVERB\n")
    task = tagging.FolderTaggingTask(TaggingOptions(data_dir=str(tmp_path)))
    sentences = task.read("dev", BadRows())
    assert "1 words of the dev split have tags that the model was not trained on (VERB)" in capsys.readouterr().out
    assert task.metrics([(["DET", "NOUN"], [1.0, 1.0])], sentences) == {"accuracy": 0.5}


def tagging_folder(folder: pathlib.Path) -> str:
    (folder / "eng.train").write_text("the O\ncat B-X\n\nsat O\n")
    (folder / "eng.testa").write_text("cat B-X\nran O\n\nunaffable O\n")
    (folder / "eng.testb").write_text("cat B-X\n")
    return str(folder)


def test_tags_are_learnt_scored_and_written_for_conlleval(vocab_file: str, tmp_path: pathlib.Path):
    folder = tagging_folder(tmp_path)
    task = tagging.FolderTaggingTask(TaggingOptions(data_dir=folder))
    assert (task.head.labels, task.best_metric) == (("B-X", "O"), "f1")
    assert (task.eval_splits, task.test_splits) == ((DEV, TEST), (TEST,))
    sentences = task.read(DEV, BadRows())
    features = task.head.featurize(sentences, FastTokenizer(vocab_file), 8)
    no = NO_LABEL
    assert features.targets[LABELS].tolist() == [no, 0, 1, no, no, 1, no, no, no]
    assert features.details[EXAMPLE].tolist() == [0, 1]
    right = [
        np.array([[9, 0], [9, 0], [0, 9], [9, 0]], np.float32),
        np.array([[9, 0], [0, 9]] + [[9, 0]] * 3, np.float32),
    ]
    predictions = task.head.decode(right, features, sentences)
    assert [tags for tags, _ in predictions] == [["B-X", "O"], ["O"]]
    assert task.metrics(predictions, sentences)["f1"] == 1.0
    (path,) = task.write_predictions(str(tmp_path), DEV, predictions, sentences)
    assert path == str(tmp_path / "predictions_dev.txt")
    assert pathlib.Path(path).read_text() == "cat\tB-X\tB-X\nran\tO\tO\n\nunaffable\tO\tO\n\n"
    assert all(each.correct for each in task.head.outcomes(predictions, sentences))


def test_words_without_tags_are_predicted_by_a_model_that_is_there(tmp_path: pathlib.Path):
    (tmp_path / "test.txt").write_text("the\ncat\n")
    task = tagging.FolderTaggingTask(TaggingOptions(data_dir=str(tmp_path), tag_column="none"), labels=["N", "V"])
    assert (task.head.labels, task.eval_splits, task.test_splits, task.best_metric) == (
        ("N", "V"),
        (),
        (TEST,),
        "accuracy",
    )
    sentences = task.read(TEST, BadRows())
    (path,) = task.write_predictions(str(tmp_path), TEST, [(["N", "V"], [1.0, 1.0])], sentences)
    assert pathlib.Path(path).read_text() == "the\tN\ncat\tV\n\n"
    assert "has no train split" in refusal(tagging.FolderTaggingTask, TaggingOptions(data_dir=str(tmp_path)))


read = functools.partial(read_kept, conll.read)


def split(words: Sequence[Sequence[str]], tokenizer: Any, max_seq_length: int, stride: int | None = None) -> list[Any]:
    """Returns the windows of sentences with their rows."""
    sentences = [Sentence(tuple(each), None, number) for number, each in enumerate(words, 1)]
    features = head.featurize(sentences, tokenizer, max_seq_length, (), stride)
    return list_rows(features, head.list_windows(features))


def test_the_first_piece_of_each_word_is_labelled(tokenizer: FullTokenizer):
    words = ("the", "unaffable", "\u200b", "cat", "sunning")
    sentence = Sentence(words, ("D", "A", "X", "N", "N"), 1)
    features = head.featurize([sentence], tokenizer, 30, ["A", "D", "N", "X"])
    tokens = tokenizer.convert_ids_to_tokens(features.input_ids.tolist())
    assert tokens == "[CLS] the un ##aff ##able [UNK] cat sun ##n ##ing [SEP]".split()
    nothing = NO_LABEL
    assert features.targets[LABELS].tolist() == [nothing, 1, 0, nothing, nothing, 3, 2, 2, nothing, nothing, nothing]


@given(
    st.lists(st.sampled_from(["cat", "unaffable", "sunning", "zzzzzzzzz"]), min_size=1, max_size=30), st.integers(3, 12)
)
def test_every_word_is_tagged_once_and_none_is_cut(words: list[str], max_seq_length: int):
    tokenizer = FakeTokenizer()
    cut = split([words], tokenizer, max_seq_length)
    assert sorted(word for window in cut for word in window.words) == list(range(len(words)))
    for window in cut:
        assert len(window.input_ids) <= max_seq_length
        for word, position in zip(window.words, window.positions, strict=True):
            kept = tokenizer.tokenize(words[word])[: max_seq_length - 2]
            assert window.input_ids[position : position + len(kept)] == tokenizer.convert_tokens_to_ids(kept)


class FakeTokenizer:
    """A fake tokenizer that makes every letter a piece."""

    def tokenize(self, word: str) -> list[str]:
        return list(word)

    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]:
        return [ord(token[0]) for token in tokens]


def test_no_room_for_a_word_is_refused(tokenizer: FullTokenizer):
    assert "max_seq_length=2 leaves no room" in refusal(split, [["cat"]], tokenizer, 2)


def test_tags_come_from_the_window_that_owns_the_word(tokenizer: FullTokenizer):
    sentences = [["the", "unaffable", "cat", "sat", "on", "the", "mat"], ["dog"]]
    cut = split(sentences, tokenizer, 6)
    assert len(cut) > 3
    labels = [f"tag {number}" for number in range(8)]
    logits = [np.full((9, 8), 5.0, np.float32) for _ in cut]  # positions without a word are never read
    for window, scores in zip(cut, logits, strict=True):
        for word, position in zip(window.words, window.positions, strict=True):
            scores[position] = 0.0
            scores[position, word] = np.log(7.0)
    tagged = head.decode_tags([7, 1], cut, logits, labels)
    assert [tags for tags, _ in tagged] == [[f"tag {number}" for number in range(7)], ["tag 0"]]
    assert tagged[0][1] == pytest.approx([0.5] * 7)


def test_real_sentences_are_windowed_whole(test_data: pathlib.Path):
    tokenizer = FullTokenizer(str(test_data / "vocab" / "bert-base-multilingual-cased-vocab.txt"), do_lower_case=False)
    sentences, problems = read(str(test_data / "tagging" / "de_gsd-ud-dev.conllu"))
    assert len(sentences) == 799
    assert problems == []
    assert len(conll.collect_tags(sentences)) == 17
    cut = split([sentence.words for sentence in sentences], tokenizer, 32)
    tagged = sorted((window.sentence, word) for window in cut for word in window.words)
    assert tagged == [(number, word) for number, each in enumerate(sentences) for word in range(len(each.words))]


def test_sentences_without_tags_have_no_targets(tokenizer: FullTokenizer):
    sentences = [Sentence(("the", "unaffable", "cat", "sat", "on"), None, 1), Sentence(("dog",), None, 7)]
    features = head.featurize(sentences, tokenizer, 6, ())
    assert features.targets == {}
    assert features.details[EXAMPLE].tolist() == [window.sentence for window in head.list_windows(features)]
    assert len(features) > 2


def test_windows_begin_a_stride_apart_at_whole_words(tokenizer: FullTokenizer):
    letters = tokenizer.convert_tokens_to_ids(list("abcdefgh"))
    cut = split([tuple("abcdefgh")], tokenizer, 6, stride=2)
    assert [window.input_ids[1:-1] for window in cut] == [letters[first : first + 4] for first in (0, 2, 4)]


def test_a_word_that_just_fits_is_not_cut(vocab_file: str):
    sentences = [Sentence(("unaffable",), None, 1), Sentence(("the", "cat", "sat"), None, 2)]
    for length, is_truncated in ((5, False), (4, True)):  # un ##aff ##able between [CLS] and [SEP]
        features = TaggingSpec().featurize(sentences, FastTokenizer(vocab_file), length)
        assert features.is_truncated.tolist() == [is_truncated, False]


def test_the_margin_of_a_sentence_is_the_least_of_all_its_windows(tokenizer: FullTokenizer):
    sentences = [Sentence(tuple("abcdefgh"), None, 1)]
    features = head.featurize(sentences, tokenizer, 6, ())
    assert len(features) > 1
    for least in range(len(features)):
        outputs = [np.tile(np.float32([0.0, 0.1 if least == row else 5.0]), (6, 1)) for row in range(len(features))]
        margins = TaggingSpec(labels=("X", "Y")).margins(outputs, features, sentences)
        assert margins == pytest.approx([np.tanh(0.05)], rel=1e-4)
