import json
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from hypothesis import given
from hypothesis import strategies as st

from official_bert.errors import UserError
from official_bert.tasks import all_tasks, entity_scores, tagging, tagging_task
from official_bert.tasks.options import TableOptions, TaggingOptions
from official_bert.tasks.tagging import Sentence
from official_bert.tasks.task import NO_LABEL, Task
from official_bert.tokenization.exact import FullTokenizer
from official_bert.utils import tables
from official_bert.utils.bad_rows import BadRows
from tests.tasks.bad_rows import KeptRows

CONLL = """-DOCSTART- -X- -X- O

The DT B-NP O
cat NN I-NP B-ANIMAL
sat VBD B-VP O

on IN B-PP O
mat NN B-NP I-THING
"""

CONLLU = """# sent_id = 1
# text = zum Hund
1-2\tzum\t_\t_\t_\t_\t_\t_\t_\t_
1\tzu\tzu\tADP\tAPPR\t_\t3\tcase\t_\t_
2\tdem\tder\tDET\tART\t_\t3\tdet\t_\t_
2.1\tist\tsein\tAUX\tVAFIN\t_\t_\t_\t_\t_
3\tguten Hund\tHund\tNOUN\tNN\t_\t0\troot\t_\t_

1\t#\t#\tSYM\t$\t_\t0\troot\t_\t_
"""


@pytest.fixture
def tokenizer(vocab_file: str) -> FullTokenizer:
    return FullTokenizer(vocab_file)


def read(path: str, **more: Any) -> tuple[list[Sentence], list[str]]:
    """The good sentences, and the bad ones' problems."""
    bad_rows = KeptRows()
    return tagging.read(path, bad_rows, **more), bad_rows.problems


def written(path: pathlib.Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


# Reading


def test_columns_are_read_with_the_last_one_as_the_tag(tmp_path: pathlib.Path):
    for text in (CONLL, CONLL.replace(" ", "\t"), CONLL.replace("\n", "\r\n"), CONLL + "\n \n\n"):
        sentences, problems = read(written(tmp_path / "a.txt", text))
        assert sentences == [
            Sentence(("The", "cat", "sat"), ("O", "B-ANIMAL", "O"), 3),
            Sentence(("on", "mat"), ("O", "I-THING"), 7),
        ]
        assert problems == []


def test_other_columns_are_chosen_by_number(tmp_path: pathlib.Path):
    path = written(tmp_path / "a.txt", "0 cat NN x\n1 sat VBD x\n")
    assert read(path, tag_column="2", word_column=1)[0] == [Sentence(("cat", "sat"), ("NN", "VBD"), 1)]
    assert read(path, tag_column="none")[0] == [Sentence(("0", "1"), None, 1)]
    assert read(path, tag_column="-2", word_column=1)[0][0].tags == ("NN", "VBD")


def test_conllu_gives_its_syntactic_words(tmp_path: pathlib.Path):
    path = written(tmp_path / "a.conllu", CONLLU)
    (first, second), problems = read(path)
    assert first == Sentence(("zu", "dem", "guten Hund"), ("ADP", "DET", "NOUN"), 4)
    assert second == Sentence(("#",), ("SYM",), 9)
    assert read(path, tag_column="xpos")[0][0].tags == ("APPR", "ART", "NN")
    assert tagging.tags_of([first, second]) == ["ADP", "DET", "NOUN", "SYM"]
    assert problems == []


@pytest.mark.parametrize(("text", "name", "reason"), [
    ("cat O\nsat\n", "a.txt", "line 2: unknown tag 'sat'; expected one of NOUN, O"),
    ("cat\tO\n\tO\n", "a.txt", "line 2: no word in column 0 of 2"),
    ("cat\t\n", "a.txt", "line 1: no tag in column -1 of 2"),
    ("1\tcat\tcat\t_\n", "a.conllu", "line 1: no tag in column 3 of 4"),
    ("1\tcat\n", "a.conllu", "line 1: no tag in column 3 of 2"),
    ("cat NOUN\n", "a.conllu", "line 1: no tag in column 3 of 2"),
])  # fmt: skip
def test_a_broken_sentence_is_named_and_the_rest_is_read(text: str, name: str, reason: str, tmp_path: pathlib.Path):
    good = "1\tcat\tcat\tNOUN\n\n"
    path = written(tmp_path / name, text + "\n" + good)
    sentences, (problem,) = read(path, known_tags=["O", "NOUN"])
    assert len(sentences) == 1
    assert problem == f"{path}, {reason}"


def test_files_without_sentences_and_impossible_columns_are_refused(tmp_path: pathlib.Path):
    path = written(tmp_path / "a.txt", "\n\n")
    with pytest.raises(UserError, match="has no sentences"):
        read(path)
    with pytest.raises(UserError, match="the tag column is 'upos'"):
        read(path, tag_column="upos")


# Windows


def test_the_first_piece_of_each_word_is_labelled(tokenizer: FullTokenizer):
    words = ("the", "unaffable", "\u200b", "cat", "sunning")
    (window,) = tagging.cut_into_windows([words], tokenizer, 30)
    tokens = tokenizer.convert_ids_to_tokens(window.input_ids)
    assert tokens == "[CLS] the un ##aff ##able [UNK] cat sun ##n ##ing [SEP]".split()
    sentence = Sentence(words, ("D", "A", "X", "N", "N"), 1)
    labels = tagging.label_ids(window, sentence, {"A": 0, "D": 1, "N": 2, "X": 3})
    nothing = NO_LABEL
    assert labels == [nothing, 1, 0, nothing, nothing, 3, 2, 2, nothing, nothing, nothing]


@given(
    st.lists(st.sampled_from(["cat", "unaffable", "sunning", "zzzzzzzzz"]), min_size=1, max_size=30), st.integers(3, 12)
)
def test_every_word_is_tagged_once_and_none_is_cut(words: list[str], max_seq_length: int):
    tokenizer = FakeTokenizer()
    cut = tagging.cut_into_windows([words], tokenizer, max_seq_length)
    assert sorted(word for window in cut for word in window.words) == list(range(len(words)))
    for window in cut:
        assert len(window.input_ids) <= max_seq_length
        for word, position in zip(window.words, window.positions, strict=True):
            kept = tokenizer.tokenize(words[word])[: max_seq_length - 2]
            assert window.input_ids[position : position + len(kept)] == tokenizer.convert_tokens_to_ids(kept)


class FakeTokenizer:
    """A piece for each letter."""

    def tokenize(self, word: str) -> list[str]:
        return list(word)

    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]:
        return [ord(token[0]) for token in tokens]


def test_no_room_for_a_word_is_refused(tokenizer: FullTokenizer):
    with pytest.raises(UserError, match="--max_seq_length=2 leaves no room"):
        tagging.cut_into_windows([["cat"]], tokenizer, 2)


def test_tags_come_from_the_window_that_owns_the_word(tokenizer: FullTokenizer):
    sentences = [["the", "unaffable", "cat", "sat", "on", "the", "mat"], ["dog"]]
    cut = tagging.cut_into_windows(sentences, tokenizer, 6)
    assert len(cut) > 3
    labels = [f"tag {number}" for number in range(8)]
    logits = [np.full((9, 8), 5.0, np.float32) for _ in cut]  # what no word reads is not looked at
    for window, scores in zip(cut, logits, strict=True):
        for word, position in zip(window.words, window.positions, strict=True):
            scores[position] = 0.0
            scores[position, word] = np.log(7.0)
    tags, probabilities = tagging.tags_from_logits([7, 1], cut, logits, labels)
    assert tags == [[f"tag {number}" for number in range(7)], ["tag 0"]]
    assert probabilities[0] == pytest.approx([0.5] * 7)


# Scores


@pytest.mark.parametrize(("tags", "expected"), [
    ("O O", []),
    ("B-X I-X O", [("X", 0, 1)]),
    ("I-X I-X O I-X", [("X", 0, 1), ("X", 3, 3)]),  # IOB1
    ("I-X B-X", [("X", 0, 0), ("X", 1, 1)]),  # IOB1: B where two of a type meet
    ("B-X I-Y I-Y", [("X", 0, 0), ("Y", 1, 2)]),
    ("B-X B-X I-X", [("X", 0, 0), ("X", 1, 2)]),
    ("S-X B-X E-X S-X", [("X", 0, 0), ("X", 1, 2), ("X", 3, 3)]),
    ("E-X E-X", [("X", 0, 0), ("X", 1, 1)]),
    ("B-X E-X I-X", [("X", 0, 1), ("X", 2, 2)]),
    ("B-A-B I-A-B", [("A-B", 0, 1)]),
    ("", []),
])  # fmt: skip
def test_entities_are_those_of_conlleval(tags: str, expected: list[entity_scores.Entity]):
    assert entity_scores.entities(tags.split()) == expected


def test_an_entity_counts_if_both_ends_and_type_are_right():
    right = ["B-X I-X O B-Y".split(), "B-X O O".split()]
    said = ["B-X I-X O B-X".split(), "B-X I-X O".split()]
    scores = entity_scores.score(right, said)
    assert scores["precision"] == scores["recall"] == scores["f1"] == pytest.approx(1 / 3)
    assert scores["accuracy"] == 5 / 7
    assert (scores["X_precision"], scores["X_recall"]) == (pytest.approx(1 / 3), 1 / 2)
    assert (scores["Y_precision"], scores["Y_recall"], scores["Y_f1"]) == (0.0, 0.0, 0.0)
    assert entity_scores.score(right, right)["f1"] == 1.0
    assert entity_scores.score([["O"]], [["O"]]) == {"precision": 0, "recall": 0, "f1": 0, "accuracy": 1}


def test_an_entity_does_not_cross_sentences():
    assert entity_scores.score([["B-X"], ["I-X"]], [["B-X"], ["B-X"]])["f1"] == 1.0


@pytest.mark.parametrize(("tags", "scheme"), [
    ("O B-PER I-PER", "IOB1 or IOB2"),
    ("O I-PER", "IOB1 or IOB2"),
    ("O B-PER I-PER E-PER S-PER", "BIOES"),
    ("O S-PER", "BIOES"),
    ("O B-PER I-PER L-PER U-PER", "BILOU"),
    ("O U-PER", "BILOU"),
    ("O B I", "IOB1 or IOB2 without types"),
    ("O B I L U", "BILOU without types"),
    ("O B I E S", "BIOES without types"),
    ("NOUN VERB", None),
    ("O", None),
    ("B-PER I-PER", None),
    ("O B-PER NOUN", None),
    ("O B-PER I", None),
    ("O B-PER L-PER E-PER", None),
    ("O B-PER M-PER", None),
    ("O B-", None),
])  # fmt: skip
def test_schemes_of_entities_are_told_from_classes(tags: str, scheme: str | None):
    assert entity_scores.scheme_of(tags.split()) == scheme


@pytest.mark.parametrize(("tags", "same"), [
    ("B-X I-X L-X O U-Y B-Y L-Y", "B-X I-X E-X O S-Y B-Y E-Y"),
    ("U-X U-X", "S-X S-X"),
    ("B-X L-X I-X", "B-X E-X I-X"),
])  # fmt: skip
def test_bilou_counts_as_bioes(tags: str, same: str):
    assert entity_scores.entities(tags.split()) == entity_scores.entities(same.split()) != []


def test_entities_without_types_are_counted():
    assert entity_scores.entities("O B I O B B I".split()) == [("", 1, 2), ("", 4, 4), ("", 5, 6)]
    found = entity_scores.score(["B I O B".split()], ["B I O O".split()])
    assert found == {"precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3), "accuracy": 0.75}


def test_how_tags_are_scored_is_said(tmp_path: pathlib.Path):
    written(tmp_path / "train.txt", "a B\ncat L\nran O\n")
    task = tagging_task.FolderTaggingTask(TaggingOptions(data_dir=str(tmp_path)))
    assert task.best_metric == "f1"
    assert task.notes() == ["the tags are entities in BILOU without types, which are scored as conlleval counts them"]
    written(tmp_path / "train.txt", "a DET\ncat NOUN\n")
    task = tagging_task.FolderTaggingTask(TaggingOptions(data_dir=str(tmp_path)))
    assert task.best_metric == "accuracy"
    (note,) = task.notes()
    assert note.startswith("the tags (DET, NOUN) are of no scheme of entities")


def test_real_sentences_are_windowed_whole(test_data: pathlib.Path):
    tokenizer = FullTokenizer(str(test_data / "vocab" / "bert-base-multilingual-cased-vocab.txt"), do_lower_case=False)
    sentences, problems = read(str(test_data / "tagging" / "de_gsd-ud-dev.conllu"))
    assert len(sentences) == 799
    assert problems == []
    assert len(tagging.tags_of(sentences)) == 17
    cut = tagging.cut_into_windows([sentence.words for sentence in sentences], tokenizer, 32)
    tagged = sorted((window.sentence, word) for window in cut for word in window.words)
    assert tagged == [(number, word) for number, each in enumerate(sentences) for word in range(len(each.words))]


def table_task(**more: Any) -> Task:
    return all_tasks.make_task("table", TableOptions(label_kind="tagging", **more))


def test_tags_come_from_a_table(tmp_path: pathlib.Path):
    csv, jsonl = tmp_path / "a.csv", tmp_path / "b.jsonl"
    csv.write_text('text,label\n"a cat, sat",DET NOUN VERB\na dog,DET NOUN\n')
    jsonl.write_text(json.dumps({"words": ["a", "hot dog"], "tags": ["DET", "NOUN"]}) + "\n")
    task = table_task(train_file=str(csv), eval_file=str(csv), predict_file=str(csv))
    assert task.labels == ("DET", "NOUN", "VERB")
    assert (task.eval_splits, task.test_splits) == (("dev",), ("test",))
    sentences = task.read("dev", BadRows())
    assert sentences[1] == Sentence(("a", "dog"), ("DET", "NOUN"), 3)
    assert [each.tags for each in task.read("test", BadRows())] == [None, None]
    task = table_task(train_file=str(jsonl), text_column="words", label_column="tags")
    assert task.read("train", BadRows()) == [Sentence(("a", "hot dog"), ("DET", "NOUN"), 1)]
    csv.write_text("text,label\na cat,DET NOUN\na dog,DET\nthe dog,DET X\n")
    task = table_task(train_file=str(jsonl), text_column="words", label_column="tags", eval_file=str(csv))
    with pytest.raises(UserError, match=r"a\.csv, line 2: no column words, tags among text, label"):
        task.read("dev", BadRows())
    task = table_task(train_file=str(csv))
    bad_rows = KeptRows()
    tagging.from_rows(tables.read_rows(str(csv), bad_rows), "a.csv", bad_rows, "text", "label", ["DET", "NOUN"])
    assert bad_rows.problems == [
        "a.csv, line 3: 2 words and 1 tags; expected a tag for each word",
        "a.csv, line 4: unknown tag X; expected one of DET, NOUN",
    ]


def test_tags_come_from_tensorflow_datasets(tmp_path: pathlib.Path):
    def data(builder: tfds.core.DatasetBuilder, **_: object) -> tf.data.Dataset:
        row = {
            "tokens": [["EU", "rejects"]],
            "ner": np.array([[3, 0]], np.int64),
            "pos": np.array([[21, 41]], np.int64),
        }
        return tf.data.Dataset.from_tensor_slices(row)

    with tfds.testing.mock_data(as_dataset_fn=data, data_dir=str(tmp_path)):
        task = table_task(
            source="tfds", tfds_name="conll2003", train_file="train", text_column="tokens", label_column="ner"
        )
        assert task.labels == ("B-ORG", "O")
        assert task.read("train", BadRows()) == [Sentence(("EU", "rejects"), ("B-ORG", "O"), 1)]


def test_a_tag_that_training_lacks_counts_as_wrong(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "x-ud-train.conllu").write_text("1\ta\ta\tDET\n2\tcat\tcat\tNOUN\n")
    (tmp_path / "x-ud-train.txt").write_text("a cat")
    (tmp_path / "x-ud-dev.conllu").write_text("1\ta\ta\tDET\n2\tran\tran\tVERB\n")
    task = tagging_task.FolderTaggingTask(TaggingOptions(data_dir=str(tmp_path)))
    sentences = task.read("dev", BadRows())
    assert "1 words of the dev part have tags that the model does not know (VERB)" in capsys.readouterr().out
    assert task.metrics([(["DET", "NOUN"], [1.0, 1.0])], sentences) == {"accuracy": 0.5}


def test_a_word_or_tag_that_is_not_known_is_told(tmp_path: pathlib.Path):
    bad_rows = KeptRows()
    rows = [(1, {"words": ["a", None], "tags": ["X", "Y"]}), (2, {"words": ["a"], "tags": ["X"]})]
    assert len(tagging.from_rows(rows, "a.jsonl", bad_rows, "words", "tags")) == 1
    assert bad_rows.problems == ["a.jsonl, line 1: 0 words and 2 tags; expected a tag for each word"]
