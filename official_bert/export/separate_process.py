"""Answers texts with a SavedModel in a process that can import TensorFlow and tensorflow-text, but not this package.

This proves that an export works without the package. `answer_without_package` starts the process, which runs this file.
"""

import json
import os
import subprocess
import sys
from typing import Any

Answers = list[dict[str, Any]]  # by output, for each row

_TOGETHER = 12
_BLOCKED_PACKAGES = ("official_bert", "data_gen")


def answer_without_package(folder: str, rows: list[dict[str, Any]]) -> tuple[Answers, Answers]:
    """Runs a SavedModel on texts, in a separate process in which this package cannot be imported.

    The arguments and the result are the same as for `compute_answers`.

    Raises:
        UserError: If the process fails. The message contains the end of its output.
    """
    from official_bert.utils import files  # Imported here: the process that runs this file cannot.

    with files.link_to_plain_path(files.local_copy(folder)) as path:
        return run_process(path, rows)


def run_process(folder: str, rows: list[dict[str, Any]]) -> tuple[Answers, Answers]:
    """Does the same as `answer_without_package`, for a folder whose path contains no wildcards such as *."""
    from official_bert.errors import UserError

    done = subprocess.run(
        [sys.executable, "-P", __file__, folder],
        input=json.dumps(rows),
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UserError(
            f"a separate process cannot run {folder} (exit status {done.returncode}): {done.stderr.strip()[-2000:]}"
        )
    alone, together = json.loads(done.stdout.splitlines()[-1])
    return alone, together


def compute_answers(folder: str, rows: list[dict[str, Any]]) -> tuple[Answers, Answers]:
    """Runs the serving_default signature of a SavedModel on each request by itself, and on some requests in one batch.

    Args:
        folder: The folder of the SavedModel.
        rows: The texts of each request, by name of the input.

    Returns:
        The answers to each request from a batch of one, and the answers to the first `_TOGETHER` requests from one
        batch. Padding is removed.
    """
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (registers the operations of the exported tokenizer)

    model = tf.saved_model.load(folder).signatures["serving_default"]

    def run(some_rows: list[dict[str, Any]]) -> dict[str, Any]:
        outputs = model(**{name: tf.constant([row[name] for row in some_rows]) for name in some_rows[0]})
        return {name: value.numpy() for name, value in outputs.items()}

    def remove_padding(outputs: dict[str, Any], number: int, shapes: dict[str, Any]) -> dict[str, Any]:
        unpadded = {name: (slice(number, number + 1), *map(slice, shapes[name].shape[1:])) for name in outputs}
        return {name: _decode(value[unpadded[name]].tolist()[0]) for name, value in outputs.items()}

    alone = [run([row]) for row in rows]
    together = run(rows[:_TOGETHER])
    return (
        [remove_padding(outputs, 0, outputs) for outputs in alone],
        [remove_padding(together, number, outputs) for number, outputs in enumerate(alone[:_TOGETHER])],
    )


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(each) for each in value]
    return value.decode("utf-8") if isinstance(value, bytes) else value


if __name__ == "__main__":
    blocked: dict[str, Any] = dict.fromkeys(_BLOCKED_PACKAGES)
    sys.modules.update(blocked)  # Blocks the import of these packages.
    print(json.dumps(compute_answers(sys.argv[1], json.load(sys.stdin))))
