"""The worker process: tokenizes text, makes blocks of instances and writes shards, without importing TensorFlow.

It reads one task per line from standard input, in JSON, and writes one line with the result. The tasks are

- `{"file": [file]}`: detect the format of an input file and split it into parts,
- `{"part": [file, part]}`: tokenize a part of an input file,
- `{"block": [pass, block]}`: make the instances of a block of documents,
- `{"bucket": [bucket]}`: encode the records of a bucket, a part of a shard (see shuffle.py),
- `{"shard": [shard]}`: write a shard, which consists of its buckets.

Results are written to files atomically. A task whose result file exists is not run again.
"""

import collections
import contextlib
import functools
import itertools
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from data_gen.options import RecordOptions
from data_gen.pipelines import outputs, preparation, shuffle, writer
from data_gen.pipelines.run_plan import RunPlan
from data_gen.rules import vectorized_instances
from data_gen.rules.instances import InstanceConfig
from data_gen.rules.random_numbers import Random
from data_gen.text import exclusion, formats, token_store, word_boundaries
from data_gen.text.exclusion import DocumentFilter, ExcludedTexts
from data_gen.text.token_store import TokenStore
from data_gen.text.word_boundaries import MarkingTokenizer
from official_bert.data import record_codec
from official_bert.errors import UserError
from official_bert.tokenization import exact
from official_bert.tokenization.exact import load_vocab
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils import files
from official_bert.utils.signals import end_with_parent

_RECORDS_AT_ONCE = 2000

_PART_BYTES = 2 << 20  # Approximate size of the parts of an input file, which several processes can share.
_MAX_PLAN_BYTES = 4 << 30  # A plan lists all text files, blocks and shards.

CORPUS, VOCAB, PLAN = "corpus", "vocab.txt", "run.json"
WORDS, EXCLUDED = "words.txt", "excluded.txt"


class TextError(UserError):
    """The text cannot be read with these flags. Unlike after other errors, running the command again does not help."""


class Worker:
    """Runs tasks. It reads the flags and the plan from the run's working folder, and stores results there."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def run_task(self, task: dict[str, Any]) -> dict[str, Any]:
        """Runs a task and returns its result, or returns the stored result of a completed task."""
        steps: dict[str, Callable[..., dict[str, Any]]] = {
            "file": self._describe_file,
            "part": self._tokenize_part,
            "block": self._make_block,
            "bucket": self._encode_bucket,
            "shard": self._write_shard,
        }
        name, arguments = next(iter(task.items()))
        done = os.path.join(self._folder, f"{name}-{'-'.join(map(str, arguments))}.json")
        if os.path.exists(done):
            return files.read_json_object(done)
        result = steps[name](*arguments)
        files.write_text(done, json.dumps(result))
        return result

    def describe(self, task: dict[str, Any]) -> str:
        """Returns a description of a task for messages: the input file that it reads, or its name and numbers."""
        name, arguments = next(iter(task.items()))
        return self._options.input_file[arguments[0]] if name in ("file", "part") else f"{name} {arguments}"

    @functools.cached_property
    def _options(self) -> RecordOptions:
        return RecordOptions(**files.read_json_object(os.path.join(self._folder, outputs.OPTIONS), _MAX_PLAN_BYTES))

    @functools.cached_property
    def _tokenizer(self) -> FastTokenizer | MarkingTokenizer:
        tokenizer = FastTokenizer(os.path.join(self._folder, VOCAB), *self._options.casing)
        return preparation.make_encoder(tokenizer, word_boundaries.load(self._options.word_boundaries))

    @functools.cached_property
    def _excluded(self) -> ExcludedTexts | None:
        return exclusion.load(self._options.exclude_texts)

    @functools.cached_property
    def _plan(self) -> RunPlan:
        return RunPlan(**files.read_json_object(os.path.join(self._folder, PLAN), _MAX_PLAN_BYTES))

    @functools.cached_property
    def _vocab(self) -> dict[str, int]:
        return load_vocab(os.path.join(self._folder, VOCAB))

    @functools.cached_property
    def config(self) -> InstanceConfig:
        """The settings for making instances."""
        return preparation.make_instance_config(self._options, self._vocab)

    @functools.cached_property
    def _ids(self) -> np.dtype:
        return token_store.choose_id_dtype(self._vocab, self._options.word_boundaries is not None)

    @functools.cached_property
    def _layout(self) -> shuffle.Layout:
        buckets = self._plan.buckets_per_shard * len(self._plan.outputs)
        return shuffle.Layout(self.config.max_seq_length, self.config.max_predictions_per_seq, self._ids, buckets)

    @functools.cached_property
    def store(self) -> TokenStore:
        """The tokenized corpus. It must be complete."""
        return TokenStore(os.path.join(self._folder, CORPUS), self._ids)

    def _describe_file(self, number: int) -> dict[str, Any]:
        """Returns the format of an input file and the byte ranges of the parts that it is split into.

        Args:
            number: Index of the file in --input_file.
        """
        path, options = self._options.input_file[number], self._options
        with _convert_text_errors():
            format = formats.resolve_format(path, options)
            return {"format": format, "ranges": formats.find_ranges(path, format, _PART_BYTES)}

    def _tokenize_part(self, number: int, part: int) -> dict[str, Any]:
        """Tokenizes a part of an input file and stores the token ids in the working folder.

        Args:
            number: Index of the file in --input_file.
            part: Index of the part.
        """
        file = self.run_task({"file": [number]})
        start, end = file["ranges"][part]
        path, options = self._options.input_file[number], self._options

        def read(start: int) -> Iterator[list[str]]:
            return formats.read_with_options(path, file["format"], options, counts, start, end)

        folder = get_part_folder(self._folder, number, part)
        kept = DocumentFilter(self._excluded)
        counts: collections.Counter[str] = collections.Counter()
        unknown = [self._vocab[exact.UNK] + mark for mark in (0, word_boundaries.get_continuation_mark(self._vocab))]
        with _convert_text_errors():
            try:
                encode = self._tokenizer.encode
                documents = kept(read(start))
                token_store.write_part(
                    folder, documents, encode, self._ids, unknown, lambda: {**kept.counts, **+counts}
                )
            except UserError:
                # Reading from the start of the file raises the same error with the right line number.
                if start:
                    collections.deque(read(0), maxlen=0)
                raise
        return {}

    def _make_block(self, number_of_pass: int, block: int) -> dict[str, int]:
        """Makes the instances of a block of documents and writes them to disk, sorted by random keys.

        Args:
            number_of_pass: Which of the --dupe_factor passes over the corpus this is.
            block: Index of the block.

        Returns:
            Counts of the instances.
        """
        random = Random(self._options.random_seed, number_of_pass, block)
        first, last = self._plan.blocks[block]
        instances = vectorized_instances.make_instances(self.store, first, last, self.config, random)
        self.store.release()
        path = get_spool_path(self._folder, number_of_pass, block)
        shuffle.spool(path, shuffle.sort_by_random_keys(instances, random), self._layout)
        return shuffle.count_statistics(instances)

    def _encode_bucket(self, bucket: int) -> dict[str, Any]:
        """Writes the records of a bucket to a file in the working folder. Returns their number."""
        passes, blocks = range(self._options.dupe_factor), range(len(self._plan.blocks))
        spooled = [get_spool_path(self._folder, *each) for each in itertools.product(passes, blocks)]
        rows = shuffle.collect_bucket(spooled, bucket, self._layout)
        schema = shuffle.make_schema(self.config)
        with files.write_atomically(self._get_bucket_path(bucket)) as temporary, open(temporary, "wb") as target:
            for start in range(0, len(rows), _RECORDS_AT_ONCE):
                batch = shuffle.make_features(rows[start : start + _RECORDS_AT_ONCE])
                target.write(writer.frame_records(record_codec.encode(batch, schema)))
        return {"records": len(rows)}

    def _get_bucket_path(self, bucket: int) -> str:
        return os.path.join(self._folder, f"encoded-{bucket}")

    def _write_shard(self, number: int) -> dict[str, Any]:
        """Joins the buckets of a shard. Returns its entry for the manifest."""
        path, count = self._plan.outputs[number], 0
        with files.write_atomically(path) as temporary:
            with writer.open_shard(temporary, self._options.gzip) as shard:
                for bucket in range(number * self._plan.buckets_per_shard, (number + 1) * self._plan.buckets_per_shard):
                    count += self.run_task({"bucket": [bucket]})["records"]
                    with open(self._get_bucket_path(bucket), "rb") as encoded:
                        shutil.copyfileobj(encoded, shard, 1 << 20)
            size, digest = files.size(temporary), files.sha256(temporary)
        return {"file": os.path.basename(path), "records": count, "bytes": size, "sha256": digest}


@contextlib.contextmanager
def _convert_text_errors() -> Iterator[None]:
    """Converts UserErrors within the context to TextErrors."""
    try:
        yield
    except UserError as error:
        raise TextError(str(error)) from error


def get_spool_path(folder: str, number_of_pass: int, block: int) -> str:
    """Returns the path of the instances of a block in the working folder."""
    return os.path.join(folder, f"spooled-{number_of_pass}-{block}")


def get_part_folder(folder: str, number: int, part: int) -> str:
    """Returns the path in the working folder for a tokenized part of an input file.

    Args:
        folder: The working folder.
        number: Index of the file in --input_file.
        part: Index of the part.
    """
    return os.path.join(folder, f"part-{number:05}-{part:05}")


def main() -> None:
    """Runs a worker process: reads tasks from standard input and writes their results to standard output.

    The command-line arguments are the working folder and the id of the parent process.
    """
    end_with_parent(int(sys.argv[2]))
    worker = Worker(sys.argv[1])
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = {"result": worker.run_task(json.loads(line))}
        except TextError as error:
            answer = {"text_error": str(error)}
        except UserError as error:
            answer = {"user_error": str(error)}
        except OSError as error:
            answer = {"os_error": [error.errno, error.strerror, error.filename]}
        except Exception:
            answer = {"defect": traceback.format_exc()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
