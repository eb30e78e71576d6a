"""Question answering, multiple choice and tagging with finetune, from data files to a saved model and its answers."""

import dataclasses
import json
import pathlib

import pytest

from official_bert.finetuning import runner
from official_bert.finetuning.options import FinetuningOptions
from official_bert.tasks.options import SquadOptions, TaskOptions, get_options_class
from official_bert.tasks.task import DEV, TEST, TRAIN
from tests.make import tiny_config, write_text

CONTEXTS = [
    "the cat sat on the mat . the dog ran in the sun .",
    "the dog walked on the cat . un mat and sun played .",
]


def squad_text(version_2: bool = False) -> str:
    """Returns eight questions that differ in one word and in their answers. In version 2.0, two are unanswerable."""
    paragraphs = []
    for number, context in enumerate(CONTEXTS):
        qas = []
        for word, answer in zip("abcd", ("cat", "the mat", "ran in", "sun"), strict=True):
            answer = answer if answer in context else "the dog walked"
            is_impossible = version_2 and word == "d"
            answers = [] if is_impossible else [{"text": answer, "answer_start": context.index(answer)}]
            question = {"id": f"{word}{number}", "question": f"{word} {word} ?", "answers": answers}
            qas.append(question | ({"is_impossible": True} if is_impossible else {}))
        paragraphs.append({"context": context, "qas": qas})
    return json.dumps({"data": [{"paragraphs": paragraphs}]})


def codah_text() -> str:
    lines = []
    for number, word in enumerate("abcdefgh"):
        endings = ["the dog ran", "on the mat", "in the sun"]
        endings.insert(number % 4, f"the cat sat {word}")
        lines.append(f"o\t{word} played\t" + "\t".join(endings) + f"\t{number % 4}\n")
    return "".join(lines)


TAGGED = "the O\ncat B-X\nsat O\non O\nthe B-Y\nmat I-Y\n\nunaffable B-X\ndog I-X\nand O\nsun B-Z\n\n"
TAGGED += "".join(f"{word} B-{word}\nran O\n\n" for word in "abcdef")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "file", "text", "score", "best"), [
    ("squad", "{}-v1.1.json", squad_text(), "f1", 100.0),
    ("squad_v2", "{}-v2.0.json", squad_text(version_2=True), "f1", 100.0),
    ("codah", "{}.tsv", codah_text(), "accuracy", 1.0),
    ("tagging", "{}.txt", TAGGED, "f1", 1.0),
])  # fmt: skip
def test_eight_examples_are_memorized_saved_and_predicted_again(
    name: str, file: str, text: str, score: str, best: float, tmp_path: pathlib.Path, vocab_file: str
):
    for part in (TRAIN, DEV, TEST) if name == "codah" else (TRAIN, DEV):
        write_text(tmp_path / "data" / file.format(part), text)
    without_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = tiny_config(hidden_size=32, intermediate_size=64, initializer_range=0.1, **without_dropout)
    task_options: TaskOptions = get_options_class(name)(data_dir=str(tmp_path / "data"))
    if isinstance(task_options, SquadOptions):
        task_options = dataclasses.replace(task_options, doc_stride=8, max_query_length=4)
    options = FinetuningOptions(
        task=name, task_options=task_options, init=write_text(tmp_path / "bert_config.json", config.to_json()),
        vocab_file=vocab_file, do_train=True, output_dir=str(tmp_path / "run"), do_eval=True, max_seq_length=18,
        train_batch_size=8, learning_rate=2e-3 if "squad" in name else 5e-3,
        num_train_epochs=250 if "squad" in name else 60, eval_steps=1000, random_seed=1,
    )  # fmt: skip
    results = runner.run(options)
    assert results[DEV][score] == best, results
    # The folder is enough to predict again, even if the training data has been deleted.
    (tmp_path / "data" / file.format(TRAIN)).unlink()
    assert runner.run(dataclasses.replace(options, do_train=False)) == results
