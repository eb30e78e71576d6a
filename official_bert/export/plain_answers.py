"""Answers texts with a SavedModel in a process that has TensorFlow and tensorflow-text and nothing of this package.

`answers` starts it; the file itself is what runs there.
"""

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

Answers = list[dict[str, Any]]  # of each row, by output

_TOGETHER = 12
_WITHOUT = ("official_bert", "data_gen")


def answers(folder: str, rows: list[dict[str, Any]]) -> tuple[Answers, Answers]:
    """Returns what `ask` does, from a process of its own.

    Raises:
        UserError: the process fails; with the end of what it printed.
    """
    from official_bert.inference import exports  # here, as this file also runs where there is no such package

    with exports.loadable(folder) as path:
        return in_own_process(path, rows)


def in_own_process(folder: str, rows: list[dict[str, Any]]) -> tuple[Answers, Answers]:
    """Returns what `ask` does, from a process of its own; the folder is one whose name TensorFlow takes as it is."""
    from official_bert.errors import UserError

    with tempfile.TemporaryDirectory() as local:
        questions, answered = os.path.join(local, "rows.json"), os.path.join(local, "answers.json")
        with open(questions, "w", encoding="utf-8") as file:
            json.dump(rows, file)
        done = subprocess.run(
            [sys.executable, "-P", __file__, folder, questions, answered],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise UserError(
                f"a process of its own cannot ask {folder} (exit status {done.returncode}): "
                f"{done.stderr.strip()[-2000:]}"
            )
        with open(answered, encoding="utf-8") as file:
            alone, together = json.load(file)
            return alone, together


def ask(folder: str, rows: list[dict[str, Any]]) -> tuple[Answers, Answers]:
    """Returns what a SavedModel's serving_default answers to each row alone, and to the first rows together.

    The latter without the padding that they get beside others.

    Args:
        folder: of the SavedModel.
        rows: the texts of each by input.
    """
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (the operations of the exported tokenizer)

    model = tf.saved_model.load(folder).signatures["serving_default"]

    def run(some: list[dict[str, Any]]) -> dict[str, Any]:
        outputs = model(**{name: tf.constant([row[name] for row in some]) for name in some[0]})
        return {name: value.numpy() for name, value in outputs.items()}

    def as_answer(outputs: dict[str, Any], number: int, shapes: dict[str, Any]) -> dict[str, Any]:
        unpadded = {name: (slice(number, number + 1), *map(slice, shapes[name].shape[1:])) for name in outputs}
        return {name: _as_json(value[unpadded[name]].tolist()[0]) for name, value in outputs.items()}

    alone = [run([row]) for row in rows]
    together = run(rows[:_TOGETHER])
    return (
        [as_answer(outputs, 0, outputs) for outputs in alone],
        [as_answer(together, number, outputs) for number, outputs in enumerate(alone[:_TOGETHER])],
    )


def _as_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_json(each) for each in value]
    return value.decode("utf-8") if isinstance(value, bytes) else value


def _main(folder: str, questions: str, answered: str) -> None:
    without: dict[str, Any] = dict.fromkeys(_WITHOUT)
    sys.modules.update(without)  # None: to import them is an error
    with open(questions, encoding="utf-8") as file:
        rows = json.load(file)
    result = ask(folder, rows)
    with open(answered, "w", encoding="utf-8") as file:
        json.dump(result, file)


if __name__ == "__main__":
    _main(*sys.argv[1:])
