"""Answers to many texts: a file of JSON lines or CSV through an exported SavedModel, to a file of JSON lines.

The answers come in the order of the texts. Those that are there already when the command is given again are kept.
"""

import contextlib
import csv
import dataclasses
import itertools
import json
import os
from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np
import tensorflow as tf

from official_bert import files
from official_bert.command_line import option
from official_bert.errors import UserError
from official_bert.progress import Progress

DESCRIPTION = os.path.join("assets.extra", "official_bert.json")

# So many batches are read at once and sorted by length, so that texts of a batch need little padding.
_BATCHES_AT_ONCE = 16


@dataclasses.dataclass(frozen=True)
class Options:
    """What batch_predict is told."""

    export_dir: str = option(dataclasses.MISSING, "An export: the folder of one version, or of all (the newest one).")
    input_file: str = option(
        dataclasses.MISSING, "JSON lines (*.jsonl), or a table with a header (*.csv, *.tsv), with the model's inputs."
    )
    output_file: str = option(dataclasses.MISSING, "The answers, as JSON lines.")
    batch_size: int = option(32, "Texts that the model reads at once.")


def newest_version(export_dir: str) -> str:
    """Returns the folder of the newest version, or the folder itself if it is a version.

    Raises:
        UserError: there is none.
    """
    if files.exists(os.path.join(export_dir, "saved_model.pb")):
        return export_dir
    names = files.list_folder(export_dir) if files.exists(export_dir) else []
    versions = [int(name.strip("/")) for name in names if name.strip("/").isdecimal()]
    if not versions:
        raise UserError(f"{export_dir} holds no export; make one with export_saved_model")
    return os.path.join(export_dir, str(max(versions)))


def predict(options: Options) -> str:
    """Answers as the options say; returns a line about it.

    Answers are gathered in <output_file>.part, which is renamed at the end; a run that was stopped goes on from there.

    Raises:
        UserError: a row lacks an input (its line is named), the model is none, or the part is of another run.
    """
    import tensorflow_text  # noqa: F401  (the operations of the exported tokenizer)

    if options.batch_size < 1:
        raise UserError(f"--batch_size={options.batch_size}; expected 1 or more")
    for path in (options.input_file, options.output_file):
        if files.is_remote(path):
            raise UserError(f"{path} is on another machine; texts and answers are on this one's disk: copy them")
    folder = newest_version(options.export_dir)
    inputs = files.read_json_object(os.path.join(folder, DESCRIPTION))["inputs"]
    part, run = f"{options.output_file}.part", f"{options.output_file}.part.json"
    done = _done(part, run, _identity(options, folder))
    rows = read_rows(options.input_file, inputs)
    total = sum(1 for _ in read_rows(options.input_file, inputs))  # every row is seen before the first answer
    if done > total:
        raise UserError(f"{part} has {done} answers to {total} rows; remove it to begin anew")
    model = tf.saved_model.load(folder).signatures["serving_default"]
    progress = Progress("predicting", total - done, "texts")
    answered = 0
    rows = itertools.islice(rows, done, None)
    with open(part, "a", encoding="utf-8") as writer:
        while some := list(itertools.islice(rows, _BATCHES_AT_ONCE * options.batch_size)):
            for answer in _answers(model, some, options.batch_size):
                writer.write(json.dumps(answer, ensure_ascii=False) + "\n")
            writer.flush()
            answered += len(some)
            progress.update(answered)
    files.rename(part, options.output_file)
    files.remove(run)
    went_on = f", {done} of them from an earlier run" if done else ""
    return f"written {options.output_file}: {total} answers{went_on}"


def _identity(options: Options, folder: str) -> dict[str, Any]:
    """What must be the same for a run to go on."""
    return {
        "model": files.absolute(folder),
        "input_file": files.absolute(options.input_file),
        "input_bytes": files.size(options.input_file) if files.exists(options.input_file) else None,
    }


def _done(part: str, run: str, identity: dict[str, Any]) -> int:
    """Returns how many answers an earlier run has left; a line that it did not finish is removed."""
    if not files.exists(part):
        files.write_text(run, json.dumps(identity, indent=1) + "\n")
        return 0
    if not files.exists(run) or files.read_json_object(run) != identity:
        raise UserError(f"{part} is of another run (see {run}); remove both to begin anew, or name another output")
    content = files.read_bytes(part)
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with open(part, "r+b") as file:
            file.truncate(whole)
    return content.count(b"\n")


def read_rows(path: str, inputs: list[str]) -> Iterator[dict[str, Any]]:
    """Yields the model's inputs of each row; other columns are ignored.

    Raises:
        UserError: the file cannot be read, or a row lacks an input; its line is named.
    """
    reader = _json_rows if path.endswith((".jsonl", ".json")) else _table_rows
    for line, row in reader(path):
        values = {name: row.get(name) for name in inputs}
        for name, value in values.items():
            is_texts = isinstance(value, list) and all(isinstance(each, str) for each in value)
            if not (is_texts if name == "endings" else isinstance(value, str)):
                what = "nothing" if value is None else json.dumps(value)[:60]
                kind = "a list of texts" if name == "endings" else "a text"
                raise UserError(f"{path}, line {line}: {name!r} is {what}; expected {kind} (the inputs: {inputs})")
        yield values


@contextlib.contextmanager
def _opened(path: str, newline: str) -> Iterator[TextIO]:
    try:
        with open(path, encoding="utf-8", newline=newline) as reader:
            yield reader
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8: {error.reason} {error.object[error.start]:#x}; convert it") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def _json_rows(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    with _opened(path, newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    row = json.loads(line)
                except json.JSONDecodeError as error:
                    raise UserError(f"{path}, line {number}: not valid JSON: {error}") from error
                yield number, row if isinstance(row, dict) else {}


def _table_rows(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    with _opened(path, newline="") as lines:
        reader = csv.DictReader(lines, delimiter="\t" if path.endswith(".tsv") else ",")
        for row in reader:
            # Endings stand in columns of their own: ending0, ending1, ...
            endings = [row[name] for name in row if isinstance(name, str) and name.startswith("ending")]
            yield reader.line_num, {**row, "endings": endings}


def _answers(model: Any, rows: list[dict[str, Any]], batch_size: int) -> list[dict[str, Any]]:
    """Returns the answers to rows in their order."""
    by_length = sorted(range(len(rows)), key=lambda number: len(str(rows[number])))
    found: list[dict[str, Any]] = [{}] * len(rows)
    for start in range(0, len(rows), batch_size):
        numbers = by_length[start : start + batch_size]
        given = {name: tf.constant([rows[number][name] for number in numbers]) for name in rows[0]}
        outputs = {name: value.numpy() for name, value in model(**given).items()}
        for place, number in enumerate(numbers):
            found[number] = readable({name: value[place] for name, value in outputs.items()})
    return found


def readable(outputs: dict[str, Any]) -> dict[str, Any]:
    """Returns the outputs of one text, NumPy arrays, as JSON can hold them, without padding."""
    count = None
    if "tags" in outputs:
        count = int(np.sum(outputs["starts"] >= 0))
    elif "tokens" in outputs:  # masks that the text does not have, have no candidates
        count = int(np.sum(outputs["probabilities"].max(axis=-1, initial=0.0) > 0))
    elif "input_mask" in outputs:
        outputs = {name: value for name, value in outputs.items() if name == "pooled_output"} or outputs
    return {name: _plain(value if count is None else value[:count]) for name, value in sorted(outputs.items())}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        return value.tolist()
    return [_plain(each) for each in value]
