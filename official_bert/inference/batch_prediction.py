"""Answers to many texts: a file of JSON lines or CSV through an export, to a file of JSON lines.

The answers come in the order of the texts. Those that are there already when the command is given again are kept. With
--shard only a part of the rows is answered, into a file of its own.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

from official_bert.checkpoints import checksums
from official_bert.errors import UserError
from official_bert.inference import exports, predictor
from official_bert.inference.options import BatchPredictionOptions
from official_bert.inference.predictor import Predictor
from official_bert.inference.shards import ALL_ROWS, Shard
from official_bert.kinds.constant_answers import ConstantAnswers
from official_bert.kinds.names import IS_TRUNCATED
from official_bert.runs import run_file
from official_bert.runs.locks import lock_file
from official_bert.utils import files, tables
from official_bert.utils.bad_rows import NoBadRows, format_position
from official_bert.utils.counting import pluralize
from official_bert.utils.progress import Progress
from official_bert.utils.tensorflow_import import import_tensorflow

# So many batches are read at once and sorted by length, so that texts of a batch need little padding.
BATCHES_AT_ONCE = 16
# Rows between two digests of the data, by which a run that goes on knows that they are the same.
_ROWS_A_DIGEST = 64
_ENDINGS = "endings"  # the input that is a list of texts


def predict(options: BatchPredictionOptions, shard: Shard = ALL_ROWS) -> str:
    """Answers as the options say; returns a line about it.

    Answers are gathered in <output_file>.part, of a remote output in the current folder, which is moved at the end; a
    run that was stopped goes on from there.

    Args:
        options: The flags.
        shard: The rows to answer. The output file is the shard's own.

    Raises:
        UserError: a row lacks an input (its line is named), the model is none or damaged, the output cannot be written
            or is an input, or the part is of another run.
    """
    options = dataclasses.replace(options, output_file=shard.path(options.output_file))
    with lock_file(options.output_file, "output_file"):
        return _predict(options, shard)


def rows_per_group(batch_size: int) -> int:
    """Returns the smallest number of rows after which a shard may end, so that it changes neither batches nor digests.

    It is a multiple of the number of rows that are sorted by length together.
    """
    return math.lcm(BATCHES_AT_ONCE * batch_size, _ROWS_A_DIGEST)


def check_export(folder: str) -> tuple[list[str], dict[str, Any]]:
    """Returns the names of an export's inputs, and the columns that its model was trained on.

    Raises:
        UserError: the export does not name its inputs, or is damaged.
    """
    metadata = exports.read_metadata(folder)
    inputs, table = metadata.get("inputs"), metadata.get("table") or {}
    if not isinstance(inputs, list):
        raise UserError(f"{folder} does not name its inputs; make the export with official-bert export")
    checksums.check_files(folder)
    return inputs, table


def load_model(folder: str) -> Predictor:
    """Loads the model of an export. TensorFlow is imported only for a SavedModel."""
    if not exports.is_onnx(folder):
        import_tensorflow()
    return predictor.load(folder, threads=1, num_workers=len(os.sched_getaffinity(0)))


def _predict(options: BatchPredictionOptions, shard: Shard) -> str:
    folder = exports.find_newest_version(options.export_dir)
    part = f"{files.work_path(options.output_file)}.part"
    run = f"{part}.json"
    for path in (options.output_file, part, run):
        if files.is_folder(path):
            raise UserError(f"--output_file would write {path}, which is a folder; give the name of a file")
        files.refuse_overwriting(
            path, "output_file", [*tables.list_files(options.input_file), *exports.list_model_files(folder)]
        )
    files.check_writable(part)
    local = files.local_copy(folder)
    inputs, table = check_export(local)
    # Every row is read before the first answer.
    total, digests = _count_and_digest(options.input_file, inputs, table)
    first, end = shard.row_range(total, rows_per_group(options.batch_size))
    row_digests = digests[first // _ROWS_A_DIGEST : end // _ROWS_A_DIGEST]
    identity = {"model": files.make_absolute(folder), "model_sha256": model_digest(local), "row_digests": row_digests}
    done = _answers_to_keep(part, run, identity) if files.exists(part) else 0
    run_file.write_run_file(run, identity)
    model = load_model(local)
    progress = Progress("predicting", end - first - done, "texts")
    answered = cut = 0
    constant = ConstantAnswers()
    rows = itertools.islice(read_rows(options.input_file, inputs, table, silent=True), first + done, end)
    try:
        for answers in answer_groups(model, rows, options.batch_size):
            _append(part, answers)
            answered += len(answers)
            cut += sum(answer.get(IS_TRUNCATED, False) for answer in answers)
            for answer in answers:
                constant.add(answer)
            progress.update(answered)
    except RefusedRow as refused:
        number = first + done + refused.number + 1
        raise UserError(format_refusal(options.input_file, number, refused.reason)) from refused
    _append(part, [])  # of an empty table there is an empty file
    files.move(part, options.output_file)
    files.remove(run)
    if warning := constant.warning():
        print(f"warning: {options.output_file}: {warning}", flush=True)
    went_on = f", {done} of them from an earlier run" if done else ""
    return f"written {options.output_file}: {pluralize(end - first, 'answer')}{went_on}{_cut_note(local, cut)}"


def _cut_note(folder: str, cut: int) -> str:
    length = exports.read_metadata(folder).get("max_seq_length")
    return f"; cut to {length} tokens (the export's max_seq_length): {pluralize(cut, 'text')}" if cut else ""


def format_json_lines(answers: list[dict[str, Any]]) -> str:
    """Returns answers as JSON lines."""
    return "".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers)


def _append(part: str, answers: list[dict[str, Any]]) -> None:
    try:
        with open(part, "a", encoding="utf-8") as writer:
            writer.write(format_json_lines(answers))
    except OSError as error:
        raise UserError(
            f"cannot write {part}: {error.strerror or error}; the answers so far are kept there: mend it and give the "
            "command again"
        ) from error


def _count_and_digest(path: str, inputs: list[str], table: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Returns the number of rows and a digest of each _ROWS_A_DIGEST of them; an incomplete last group has none."""
    digest, digests, count = hashlib.sha256(), [], 0
    for row in read_rows(path, inputs, table):
        digest.update(json.dumps(row).encode())
        count += 1
        if count % _ROWS_A_DIGEST == 0:
            digests.append(digest.hexdigest()[:32])
            digest = hashlib.sha256()
    return count, digests


def model_digest(folder: str) -> str:
    """Returns a SHA-256 of the names and contents of the files of an export that answers depend on."""
    digest = hashlib.sha256()
    for path in exports.list_model_files(folder):
        digest.update(f"{os.path.relpath(path, folder)} {files.sha256(path)}\n".encode())
    return digest.hexdigest()


def _answers_to_keep(part: str, run: str, identity: dict[str, Any]) -> int:
    """Returns how many answers of an earlier run are kept; the others are removed from the part.

    Kept are those to rows that have a digest. Rows behind them may have been mended since.

    Raises:
        UserError: the answers are of another model, or to other rows.
    """
    with open(part, "rb") as reader:
        digests = sum(line.endswith(b"\n") for line in reader) // _ROWS_A_DIGEST
    kept = digests * _ROWS_A_DIGEST
    before, now = (
        {**values, "row_digests": values.get("row_digests", [])[:digests]}
        for values in (run_file.read_run_file(run), identity)
    )
    changes = run_file.find_changes(before, now)
    descriptions = {
        name: f"the {name} was {before.get(name)} and is {now[name]}" for name in ("model", "model_sha256")
    } | {"row_digests": f"some of its first {kept} rows have changed"}
    run_file.refuse_changes(part, changes, "Remove it to start over, or pass another --output_file.", descriptions)
    with open(part, "r+b") as file:
        for _ in range(kept):
            file.readline()
        file.truncate(file.tell())
    return kept


def read_rows(
    path: str,
    inputs: list[str],
    table: Mapping[str, Any] | None = None,
    unexpected: str | None = None,
    silent: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yields the model's inputs of each row, and its id if it has one; other columns are ignored.

    In a table the endings of multiple choice have columns of their own: ending0, ending1, ...

    `table` says which columns the model was trained on, as a fine-tuned model's task.json does; a row is read by these
    where it has them, else by the inputs themselves. `unexpected` is an input that no row may have. `silent`
    suppresses notes about the file.

    Raises:
        UserError: the file cannot be read, or a row lacks an input or has another one; its line is named.
    """
    table = table or {}
    # Each text gets its answer in the line of its number, so that no row may be left out.
    bad_rows = NoBadRows(silent=silent)
    for line, row in tables.read_rows(path, bad_rows, table.get("columns") or None):
        if unexpected in row:
            bad_rows.add(path, line, f"it has {unexpected!r}, which the first row has not; give files of one kind")
        if _ENDINGS in inputs and _ENDINGS not in row:
            row[_ENDINGS] = _join_endings(row, format_position(path, line))
        values, problem = exports.read_row(row, inputs, table)
        if not problem and len(values) < len(inputs):
            wanted = exports.list_trained_columns(table) or inputs
            tables.check_columns(path, wanted, list(row), has_header=not table.get("columns"))
            problem = tables.find_text_problem(row, wanted)
        texts = dict(values)
        if isinstance(endings := texts.pop(_ENDINGS, []), list):
            texts |= {f"{_ENDINGS}[{number}]": each for number, each in enumerate(endings)}
        else:
            problem = problem or f"{_ENDINGS} is {json.dumps(endings)[:60]}; expected a list of texts"
        problem = problem or next(filter(None, (tables.find_text_problem(texts, [name]) for name in texts)), "")
        if problem:
            bad_rows.add(path, line, problem)
        yield values | _id_of(row)


def _id_of(row: Mapping[str, Any]) -> dict[str, Any]:
    return {exports.ID: row[exports.ID]} if exports.ID in row else {}


def _join_endings(row: Mapping[str, Any], where: str) -> list[Any]:
    """Returns the values of the columns ending0, ending1, ... in the order of their numbers.

    Raises:
        UserError: If other columns begin with "ending", or a number is missing.
    """
    found = [name for name in row if name.startswith("ending")]
    expected = [f"ending{number}" for number in range(len(found))]
    if sorted(found) != sorted(expected):
        raise UserError(
            f"{where}: the columns of endings are {tables.format_names(found)}; expected "
            f"{tables.format_names(expected)}"
        )
    return [row[name] for name in expected]


class RefusedRow(Exception):  # noqa: N818  (caught where the number of the row is known)
    """The model cannot answer one of the rows, that of a number among those that were given."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(number, reason)
        self.number, self.reason = number, reason


def format_refusal(path: str, number: int, reason: str) -> str:
    """Returns the error message for a row that the model cannot answer; rows are numbered from 1."""
    return (
        f"{path}: the model cannot answer row {number} (the header does not count): {reason}; mend or remove it and "
        "give the command again"
    )


def answer_groups(model: Predictor, rows: Iterator[dict[str, Any]], batch_size: int) -> Iterator[list[dict[str, Any]]]:
    """Yields the answers to rows in their order, one list for each group of rows that is sorted by length.

    Raises:
        RefusedRow: If the model cannot answer a row.
    """
    first = 0
    while group := list(itertools.islice(rows, BATCHES_AT_ONCE * batch_size)):
        try:
            answers = answer_rows(model, group, batch_size)
        except RefusedRow as refused:
            raise RefusedRow(first + refused.number, refused.reason) from refused
        yield answers
        first += len(group)


def answer_rows(model: Predictor, rows: list[dict[str, Any]], batch_size: int) -> list[dict[str, Any]]:
    """Returns the answers to rows in their order.

    Raises:
        RefusedRow: If the model cannot answer a row.
    """
    inputs = rows[0].keys() - {exports.ID}
    try:
        answers = exports.to_rows(
            model.run(exports.to_columns({name: [row[name] for row in rows] for name in inputs}), batch_size)
        )
    except exports.RefusedTextsError as error:
        if len(rows) == 1:
            raise RefusedRow(0, str(error)) from error
        answers = []
        for number, row in enumerate(rows):
            try:
                answers += answer_rows(model, [row], 1)
            except RefusedRow as refused:
                raise RefusedRow(number, refused.reason) from refused
        return answers
    return [_id_of(row) | answer for row, answer in zip(rows, answers, strict=True)]
