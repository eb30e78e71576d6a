"""Memory and time of make-records by text format: `python -m tools.benchmarks.generation_formats --help`.

The same documents stand in each file. Memory is the most that a process held, with and without pages of mapped files;
the first process and the workers are looked at twenty times a second.
"""

import dataclasses
import datetime
import hashlib
import itertools
import json
import lzma
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.parquet
import zstandard

from data_gen.text import formats
from official_bert.errors import UserError
from official_bert.utils.command_line import Command
from official_bert.utils.flags import option
from tools.benchmarks import corpus
from tools.benchmarks.memory import Peak, largest, note_memory

ROOT = pathlib.Path(__file__).parents[2]
_SCHEMA = pa.schema([("text", pa.string())])
_ROWS = 1000  # of a row group or record batch


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the benchmark."""

    megabytes: int = option(300, "How much text each file holds.")
    formats: list[str] = option(["text", "zst", "parquet", "one_row_group", "arrow"], "Which files to make, in turn.")
    num_workers: int = option(2, "Processes of the command.")

    def __post_init__(self) -> None:
        if unknown := [name for name in self.formats if name not in WRITERS]:
            raise UserError(f"--formats names {unknown[0]!r}; expected some of {', '.join(WRITERS)}")


def _text(path: str, documents: Iterator[str]) -> None:
    with open(path, "w", encoding="utf-8") as writer:
        writer.writelines(f"{document}\n\n" for document in documents)


def _lines(documents: Iterator[str]) -> Iterator[bytes]:
    return ((json.dumps({"text": document}) + "\n").encode() for document in documents)


def _zstandard(path: str, documents: Iterator[str]) -> None:
    with open(path, "wb") as raw, zstandard.ZstdCompressor(3).stream_writer(raw) as writer:
        for line in _lines(documents):
            writer.write(line)


def _xz(path: str, documents: Iterator[str]) -> None:
    with lzma.open(path, "wb", preset=1) as writer:
        writer.writelines(_lines(documents))


def _parquet(path: str, documents: Iterator[str], rows: int = _ROWS) -> None:
    with pa.parquet.ParquetWriter(path, _SCHEMA) as writer:
        while some := list(itertools.islice(documents, rows)):
            writer.write_table(pa.table([some], schema=_SCHEMA), row_group_size=rows)


def _one_row_group(path: str, documents: Iterator[str]) -> None:
    _parquet(path, documents, 1 << 30)


def _arrow(path: str, documents: Iterator[str]) -> None:
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, _SCHEMA) as stream:
        while some := list(itertools.islice(documents, _ROWS)):
            stream.write_table(pa.table([some], schema=_SCHEMA))


WRITERS: dict[str, Callable[[str, Iterator[str]], None]] = {
    "text": _text, "zst": _zstandard, "xz": _xz, "parquet": _parquet, "one_row_group": _one_row_group, "arrow": _arrow,
}  # fmt: skip


def _documents(text_file: str, megabytes: int) -> Iterator[str]:
    """Yields copies of the documents of a file until they have so many megabytes; no two are equal."""
    texts = ["\n".join(document) for document in formats.read_documents(text_file, "sentences")]
    left = megabytes * 1_000_000
    for number, text in enumerate(itertools.cycle(texts)):
        if left <= 0:
            return
        copy = f"This is document {number}.\n{text}"
        left -= len(copy.encode()) + 2
        yield copy


def measure(source: str, vocab_file: str, folder: str, workers: int) -> tuple[float, Peak, Peak, str]:
    """Returns the seconds of the command, the most memory of its first process and of any worker, and a hash."""
    output = pathlib.Path(folder) / "records.tfrecord"
    layout = ["--input_format=paragraphs"] if source.endswith(".text") else []
    command = [
        sys.executable, "-m", "official_bert_cli", "make-records", f"--input_file={source}", f"--output_file={output}",
        f"--vocab_file={vocab_file}", "--dupe_factor=1", f"--num_workers={workers}", *layout,
    ]  # fmt: skip
    start = time.perf_counter()
    peaks: dict[int, Peak] = {}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while process.poll() is None:
            note_memory(process.pid, peaks)
            time.sleep(0.05)
        seconds = time.perf_counter() - start
        if process.returncode:
            assert process.stderr is not None
            raise SystemExit(process.stderr.read().decode())
    with open(output, "rb") as reader:
        digest = hashlib.file_digest(reader, "sha256").hexdigest()
    for path in output.parent.glob("records.*"):
        path.unlink()
    first = peaks.pop(process.pid)
    return seconds, first, largest(peaks), digest


def main(options: Options) -> None:
    print(f"{datetime.date.today()}, {platform.processor() or platform.machine()}, {os.cpu_count()} processors")
    print(f"\nRecords from {options.megabytes} MB of text, dupe_factor 1, {options.num_workers} workers\n")
    print(
        "| file | MB on disk | seconds | MiB of the first process | without mapped files | MiB of a worker | "
        "without mapped files | records |"
    )
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        _, text_file, vocab_file = corpus.write_text(folder)
        for name in options.formats:
            source = os.path.join(folder, f"source.{name}")
            WRITERS[name](source, _documents(text_file, options.megabytes))
            size = os.path.getsize(source) / 1e6
            seconds, first, worker, digest = measure(source, vocab_file, folder, options.num_workers)
            os.remove(source)
            held = " | ".join(f"{each.memory:.0f} | {each.own:.0f}" for each in (first, worker))
            print(f"| {name} | {size:.0f} | {seconds:.0f} | {held} | {digest[:8]} |", flush=True)


if __name__ == "__main__":
    Command(
        program="python -m tools.benchmarks.generation_formats",
        summary="Measures memory and time of make-records by the file that holds the text.",
        main=main,
        options=(Options,),
        examples=("--megabytes=1000", "--formats=text,parquet --num_workers=4"),
        tensorflow=False,
    ).run()
