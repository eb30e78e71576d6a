"""The predict command: answers each row of a file with an export, and writes a line of JSON per row in the same order.

Running an interrupted command again resumes it. With --shard, only one part of the rows is answered.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from official_bert.checkpoints import checksums
from official_bert.errors import UserError
from official_bert.inference import backends, exports
from official_bert.inference.options import BatchPredictionOptions
from official_bert.inference.predictor import Predictor
from official_bert.inference.shards import ALL_ROWS, Shard
from official_bert.kinds.all_kinds import SPECS
from official_bert.kinds.constant_answers import ConstantAnswers
from official_bert.kinds.names import IS_TRUNCATED
from official_bert.kinds.spec import KindSpec
from official_bert.runs import run_file
from official_bert.runs.locks import lock_file
from official_bert.utils import files, tables
from official_bert.utils.bad_rows import NoBadRows, format_position
from official_bert.utils.counting import pluralize
from official_bert.utils.progress import Progress
from official_bert.utils.tensorflow_import import import_tensorflow

# Number of batches that are read and sorted by length together, so that batches need little padding.
BATCHES_AT_ONCE = 16
# Number of rows per digest. A resumed run compares the digests to detect changed input.
_ROWS_A_DIGEST = 64
_ENDINGS = "endings"  # Name of the input of multiple choice that is a list of texts.

# Function from the index of one of the rows that are answered to its file and its number there, from 1.
Locate = Callable[[int], tuple[str, int]]


@dataclasses.dataclass(frozen=True)
class Prediction:
    """An export whose files were checked, and how it answers the rows of a file. Dask workers receive it, too.

    Attributes:
        folder: The folder of one version of the export.
        batch_size: Maximum number of rows per batch.
        metadata: The metadata of the export.
        sha256: SHA-256 of all files that the answers depend on.
    """

    folder: str
    batch_size: int
    metadata: Mapping[str, Any]
    sha256: str

    @classmethod
    def open(cls, folder: str, batch_size: int) -> Self:
        """Checks the files of an export against their checksums.

        Raises:
            UserError: If the export is damaged, or does not list its inputs.
        """
        metadata = exports.read_metadata(folder)
        if not isinstance(metadata.get("inputs"), list):
            raise UserError(f"{folder} does not list its inputs. Export the model with official-bert export.")
        hashes = checksums.check_files(folder)
        digest = hashlib.sha256()
        for path in exports.list_model_files(folder):
            name = os.path.relpath(path, folder)
            digest.update(f"{name} {hashes.get(name) or files.sha256(path)}\n".encode())
        return cls(folder, batch_size, metadata, digest.hexdigest())

    @property
    def identity(self) -> dict[str, Any]:
        """Everything except the rows that the answers depend on, as JSON values."""
        return {"model": self.folder, "model_sha256": self.sha256, "batch_size": self.batch_size}

    @property
    def rows_per_group(self) -> int:
        """Number of input rows that are processed as a group. Shards consist of whole groups.

        It is a multiple of the number of rows that are sorted together and of the number of rows per digest.
        """
        return math.lcm(BATCHES_AT_ONCE * self.batch_size, _ROWS_A_DIGEST)

    def read(self, path: str, silent: bool = True) -> Iterator[dict[str, Any]]:
        """Yields the rows of a file (see `read_rows`)."""
        num_choices = self.metadata.get("task_spec", {}).get("num_choices")
        return read_rows(path, self.metadata["inputs"], self.metadata.get("table"), num_choices, silent=silent)

    def load(self, verify: bool = True) -> Predictor:
        """Loads the model. TensorFlow is imported only if the export is a SavedModel.

        Args:
            verify: Whether to check the files against their checksums again, as on another machine.
        """
        if not exports.is_onnx(self.folder):
            import_tensorflow()
        return backends.load_predictor(self.folder, threads=1, num_workers=len(os.sched_getaffinity(0)), verify=verify)

    def output_files(self, path: str) -> list[str]:
        """Returns the paths of the files that `write` writes."""
        return [path]

    def write(self, model: Predictor, first: int, rows: Iterator[dict[str, Any]], path: str, locate: Locate) -> None:
        """Writes the answers to a file, which appears when it is complete."""
        del first
        with files.write_atomically(path) as temporary, open(temporary, "wb") as writer:
            for answers in answer_groups(model, rows, self.batch_size, locate):
                writer.write(format_json_lines(answers).encode())


def predict(options: BatchPredictionOptions, shard: Shard = ALL_ROWS) -> str:
    """Answers the rows of the input file, writes the answers to the output file, and returns a summary line.

    Answers are appended to <output_file>.part, which is renamed when it is complete. If the output file is remote, the
    .part file is in the current folder. If a .part file exists, the run resumes after its last answers.

    Args:
        options: The flags.
        shard: The part of the rows to answer. Each shard has its own output file.

    Raises:
        UserError: If a row lacks an input, the export is missing or damaged, the output file cannot be written or is
            also an input, or the .part file belongs to another run.
    """
    output_file = shard.path(options.output_file)
    with lock_file(output_file, "output_file"):
        return _predict(options, shard, output_file)


def _predict(options: BatchPredictionOptions, shard: Shard, output_file: str) -> str:
    folder = exports.find_newest_version(options.export_dir)
    part = f"{files.work_path(output_file)}.part"
    run = f"{part}.json"
    inputs = [*tables.list_files(options.input_file), *exports.list_model_files(folder)]
    for path in (output_file, part, run):
        if files.is_folder(path):
            raise UserError(f"--output_file would write {path}, which is a folder. Pass the name of a file.")
        files.refuse_overwriting(path, "output_file", inputs)
    files.note_replacement(output_file)
    files.check_writable(part)
    prediction = Prediction.open(files.local_copy(folder), options.batch_size)
    # Read every row before the first answer, so that a bad row is reported early.
    total, digests = _count_and_digest(prediction.read(options.input_file, silent=False))
    first, end = shard.select_rows(options.output_file, total, prediction.rows_per_group)
    row_digests = digests[first // _ROWS_A_DIGEST : end // _ROWS_A_DIGEST]
    identity = {"model": files.make_absolute(folder), "model_sha256": prediction.sha256, "row_digests": row_digests}
    done = _keep_answers(part, run, identity) if files.exists(part) else 0
    run_file.write_run_file(run, identity)
    model = prediction.load(verify=False)  # `open` has compared the checksums.
    progress = Progress("predicting", end - first - done, "texts")
    answered = truncated = 0
    constant = ConstantAnswers()
    rows = itertools.islice(prediction.read(options.input_file), first + done, end)
    for answers in answer_groups(
        model, rows, options.batch_size, lambda index: (options.input_file, first + done + index + 1)
    ):
        _append(part, answers)
        answered += len(answers)
        truncated += sum(answer.get(IS_TRUNCATED, False) for answer in answers)
        for answer in answers:
            constant.add(answer)
        progress.update(answered)
    _append(part, [])  # Creates the file if the input has no rows.
    files.move(part, output_file)
    files.remove(run)
    if warning := constant.warning():
        print(f"warning: {output_file}: {warning}", flush=True)
    summary = f"Wrote {pluralize(end - first, 'answer')} to {output_file}"
    if done:
        summary += f", {done:,} of them from an earlier run"
    if truncated:
        summary += f"; {_describe_limit(prediction.metadata)}: {truncated:,}"
        if done:
            summary += f" of the other {answered:,}"
    return summary


def _describe_limit(metadata: Mapping[str, Any]) -> str:
    """Returns which limit texts are truncated to. In windows, a first text has fewer than max_seq_length tokens."""
    spec = SPECS.get(metadata.get("kind", ""), KindSpec)
    length = {**metadata.get("task_spec", {}), **metadata}.get(spec.length_limit)
    return f"truncated to fit in the export's {spec.length_limit}" + (f" of {length} tokens" if length else "")


def format_json_lines(answers: list[dict[str, Any]]) -> str:
    """Formats each answer as a line of JSON."""
    return "".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers)


def _append(part: str, answers: list[dict[str, Any]]) -> None:
    try:
        with open(part, "a", encoding="utf-8") as writer:
            writer.write(format_json_lines(answers))
    except OSError as error:
        raise UserError(
            f"Cannot write {part}: {error.strerror or error}. The answers so far are kept in it. Fix the cause and run "
            "the command again."
        ) from error


def _count_and_digest(rows: Iterator[dict[str, Any]]) -> tuple[int, list[str]]:
    """Returns the number of rows, and a SHA-256 digest of each complete group of 64 rows."""
    digest, digests, count = hashlib.sha256(), [], 0
    for row in rows:
        digest.update(json.dumps(row).encode())
        count += 1
        if count % _ROWS_A_DIGEST == 0:
            digests.append(digest.hexdigest()[:32])
            digest = hashlib.sha256()
    return count, digests


def _keep_answers(part: str, run: str, identity: dict[str, Any]) -> int:
    """Prepares the answers of an interrupted run for resuming, and returns how many of them are kept.

    Answers to rows of the last, incomplete group of 64 are removed, because these rows have no digest and may have been
    corrected since.

    Args:
        part: The .part file with the answers.
        run: The file that describes the interrupted run.
        identity: The description of the current run.

    Raises:
        UserError: If the answers belong to another model or to other rows.
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
    num_choices: int | None = None,
    *,
    unexpected: str | None = None,
    silent: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yields the values of the model's inputs in each row of a file, and the row's id if it has one.

    In a table, each ending of multiple choice has a column of its own: ending0, ending1, and so on.

    Args:
        path: The file, in a format that `tables.read_rows` reads.
        inputs: Names of the model's inputs.
        table: The table columns that the model was trained on (see `exports.read_row`). None if it was not trained on a
            table.
        num_choices: Number of endings of a row of multiple choice. None if it is unknown.
        unexpected: Name of a column that no row may have, or None.
        silent: Whether to suppress notes about the file.

    Raises:
        UserError: If the file cannot be read, a row lacks an input or has another number of endings, or a row has the
            unexpected column.
    """
    table = table or {}
    ending_columns = [f"ending{number}" for number in range(num_choices or 0)]
    bad_rows = NoBadRows(silent=silent)  # No row may be skipped: line N of the output answers row N.
    for line, row in tables.read_rows(path, bad_rows, table.get("columns") or None):
        if unexpected in row:
            bad_rows.add(
                path, line, f"it has {unexpected!r}, but the first row does not. All rows need the same columns"
            )
        if _ENDINGS in inputs and _ENDINGS not in row and any(name.startswith("ending") for name in row):
            row[_ENDINGS] = _join_endings(row, ending_columns, format_position(path, line))
        values, problem = exports.read_row(row, inputs, table)
        if not problem and len(values) < len(inputs):
            wanted = exports.list_trained_columns(table) or inputs
            columns = ending_columns if _ENDINGS in wanted and _ENDINGS not in row else []
            required = [name for name in wanted if not (columns and name == _ENDINGS)] + columns
            tables.check_columns(path, required, list(row), has_header=not table.get("columns"))
            problem = tables.find_text_problem(row, wanted)
        texts = {exports.find_column(name, row, table)[0]: value for name, value in values.items()}
        if _ENDINGS in texts:
            endings = texts.pop(_ENDINGS)
            problem = problem or _find_endings_problem(endings, ending_columns)
            texts |= {} if problem else {f"{_ENDINGS}[{number}]": each for number, each in enumerate(endings)}
        problem = problem or next(filter(None, (tables.find_text_problem(texts, [name]) for name in texts)), "")
        if problem:
            bad_rows.add(path, line, problem)
        if not silent:
            silent = True  # One note per file is enough.
            used = [name for name in exports.list_trained_columns(table) if name in row] or inputs
            if unused := [name for name in row if name not in (*used, exports.ID) and not name.startswith("ending")]:
                print(f"note: {path}: columns that the model does not use: {tables.format_names(unused)}", flush=True)
        yield values | _get_id(row)


def _get_id(row: Mapping[str, Any]) -> dict[str, Any]:
    return {exports.ID: row[exports.ID]} if exports.ID in row else {}


def _find_endings_problem(endings: Any, columns: list[str]) -> str:
    """Returns a description of the problem if `endings` is no list, or has another length than `columns`, or ""."""
    expected = f"expected a list of {len(columns) or 'several'} texts or, in a CSV or TSV file, the columns "
    expected += tables.format_names(columns) if columns else "ending0, ending1, ..."
    if not isinstance(endings, list):
        return f"{_ENDINGS} is {json.dumps(endings)[:60]}; {expected}"
    return f"{_ENDINGS} has {len(endings)} texts; {expected}" if columns and len(endings) != len(columns) else ""


def _join_endings(row: Mapping[str, Any], columns: list[str], where: str) -> list[Any]:
    """Returns the values of the columns ending0, ending1, ... as a list.

    Args:
        row: The values of the row by column.
        columns: The names of these columns. Empty if their number is unknown.
        where: Position of the row, for the error message.

    Raises:
        UserError: If another column begins with "ending", or a number is missing.
    """
    found = [name for name in row if name.startswith("ending")]
    expected = columns or [f"ending{number}" for number in range(len(found))]
    if sorted(found) != sorted(expected):
        raise UserError(
            f"{where}: the columns of endings are {tables.format_names(found)}; expected "
            f"{tables.format_names(expected)}"
        )
    return [row[name] for name in expected]


def answer_groups(
    model: Predictor, rows: Iterator[dict[str, Any]], batch_size: int, locate: Locate
) -> Iterator[list[dict[str, Any]]]:
    """Yields the answers to rows, in the order of the rows, as a list for each group of rows.

    The rows of a group are sorted by length to form batches.

    Args:
        model: The model of an export.
        rows: Values of the model's inputs by name, and optionally an id.
        batch_size: Maximum number of rows per batch.
        locate: Returns the position of a row, for the error message.

    Raises:
        UserError: If the model cannot answer a row.
    """
    first = 0
    while group := list(itertools.islice(rows, BATCHES_AT_ONCE * batch_size)):
        try:
            answers = answer_rows(model, group, batch_size)
        except exports.RefusedTextsError:  # Find the row.
            answers = []
            for index, row in enumerate(group, start=first):
                try:
                    answers += answer_rows(model, [row], 1)
                except exports.RefusedTextsError as error:
                    path, number = locate(index)
                    raise UserError(
                        f"{path}: the model cannot answer row {number} (not counting the header): {error}. Correct or "
                        "remove the row and run the command again."
                    ) from error
        yield answers
        first += len(group)


def answer_rows(model: Predictor, rows: list[dict[str, Any]], batch_size: int) -> list[dict[str, Any]]:
    """Returns the answers to rows, in the order of the rows, as JSON values by output name.

    Args:
        model: The model of an export.
        rows: Values of the model's inputs by name, and optionally an id, which is copied to the answer.
        batch_size: Maximum number of rows per batch.

    Raises:
        RefusedTextsError: If the model cannot answer one of the rows.
    """
    inputs = rows[0].keys() - {exports.ID}
    columns = exports.to_columns({name: [row[name] for row in rows] for name in inputs})
    answers = exports.to_rows(model.run(columns, batch_size))
    return [_get_id(row) | answer for row, answer in zip(rows, answers, strict=True)]
