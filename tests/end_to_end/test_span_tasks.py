"""Question answering, multiple choice and tagging with finetune, from data files to a saved model and its answers."""

import dataclasses
import functools
import json
import pathlib

import pytest

from official_bert.finetuning import runner
from official_bert.finetuning.options import Options
from official_bert.tasks.options import SquadOptions, TaskOptions, get_options_class
from official_bert.tasks.task import DEV, TRAIN
from tests.make import tiny_config, write_text

CONTEXTS = [
    "the cat sat on the mat . the dog ran in the sun .",
    "the dog walked on the cat . un mat and sun played .",
]


def squad_file(path: pathlib.Path, version_2: bool) -> None:
    """Writes eight questions that differ in one word and in their answers. In version 2.0, two are unanswerable."""
    paragraphs = []
    for number, context in enumerate(CONTEXTS):
        qas = []
        for word, answer in zip("abcd", ("cat", "the mat", "ran in", "sun"), strict=True):
            answer = answer if answer in context else "the dog walked"
            entry = {"id": f"{word}{number}", "question": f"{word} {word} ?", "answers": []}
            if version_2 and word == "d":
                entry["is_impossible"] = True
            else:
                entry["answers"] = [{"text": answer, "answer_start": context.index(answer)}]
            qas.append(entry)
        paragraphs.append({"context": context, "qas": qas})
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))


def squad_data(folder: pathlib.Path, version_2: bool = False) -> None:
    for part in (TRAIN, DEV):
        squad_file(folder / f"{part}-{'v2.0' if version_2 else 'v1.1'}.json", version_2)


def codah_data(folder: pathlib.Path) -> None:
    lines = []
    for number, word in enumerate("abcdefgh"):
        endings = ["the dog ran", "on the mat", "in the sun"]
        endings.insert(number % 4, f"the cat sat {word}")
        lines.append(f"o\t{word} played\t" + "\t".join(endings) + f"\t{number % 4}")
    for part in ("train", "dev", "test"):
        (folder / f"{part}.tsv").write_text("\n".join(lines) + "\n")


def tagging_data(folder: pathlib.Path) -> None:
    text = "the O\ncat B-X\nsat O\non O\nthe B-Y\nmat I-Y\n"
    text += "\nunaffable B-X\ndog I-X\nand O\nsun B-Z\n\n" + "".join(f"{w} B-{w}\nran O\n\n" for w in "abcdef")
    for part in ("train", "dev"):
        (folder / f"{part}.txt").write_text(text)


@pytest.mark.parametrize(("name", "make_data", "score", "most"), [
    pytest.param("squad", squad_data, "f1", 100.0, marks=pytest.mark.slow),
    pytest.param("squad_v2", functools.partial(squad_data, version_2=True), "f1", 100.0, marks=pytest.mark.slow),
    pytest.param("codah", codah_data, "accuracy", 1.0, marks=pytest.mark.slow),
    pytest.param("tagging", tagging_data, "f1", 1.0, marks=pytest.mark.slow),
])  # fmt: skip
def test_eight_examples_are_learnt_by_heart_saved_and_predicted_again(
    name: str, make_data, score: str, most: float, tmp_path: pathlib.Path, vocab_file: str
):
    config = tiny_config(
        hidden_size=32, intermediate_size=64, initializer_range=0.1, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    init = write_text(tmp_path / "bert_config.json", config.to_json())
    data = tmp_path / "data"
    data.mkdir()
    make_data(data)
    task_options: TaskOptions = get_options_class(name)(data_dir=str(data))
    if isinstance(task_options, SquadOptions):
        task_options = dataclasses.replace(task_options, doc_stride=8, max_query_length=4)
    options = Options(
        task=name, task_options=task_options, init=init, vocab_file=vocab_file, do_train=True,
        output_dir=str(tmp_path / "run"), do_eval=True, max_seq_length=18,
        train_batch_size=8, learning_rate=2e-3 if "squad" in name else 5e-3,
        num_train_epochs=250 if "squad" in name else 60, eval_steps=1000,
        random_seed=1,
    )  # fmt: skip
    results = runner.run(options)
    assert results[DEV][score] == most, results
    # The folder is enough to predict again, even if the training data has been deleted.
    (data / next(path.name for path in data.iterdir() if path.name.startswith(TRAIN))).unlink()
    again = runner.run(dataclasses.replace(options, do_train=False))
    assert again == results
