"""Records of real prose and of short documents for the record-making tests."""

import functools
import json
import math
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf

from data_gen.options import RecordOptions
from data_gen.pipelines import one_machine, worker, worker_pool
from data_gen.rules.instances import InstanceConfig
from data_gen.text import token_store
from official_bert.data import record_codec, record_reader, record_schema

LENGTH, PREDICTIONS = 32, 5

Corpus = tuple[list[str], str]  # the paths of the text files, and the path of the vocabulary


class OneProcess(worker_pool.WorkerPool):
    """Runs the tasks of workers in this process, which is faster than starting another one."""

    def grow(self, count: int) -> None:
        pass

    def run_tasks(self, what: str, tasks: list[dict[str, Any]], *_: object) -> list[dict[str, Any]]:
        return list(map(worker.Worker(self._folder).run_task, tasks))


create_records = functools.partial(one_machine.create_pretraining_data, pool=OneProcess)


def make_options(corpus: Corpus, folder: pathlib.Path, **changes: Any) -> RecordOptions:
    folder.mkdir(parents=True, exist_ok=True)
    paths = {"input_file": corpus[0], "output_file": [str(folder / "out.tfrecord")], "vocab_file": corpus[1]}
    sizes = {"max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS, "block_tokens": 5000}
    return RecordOptions(**{**paths, **sizes, "dupe_factor": 2, "num_shards": 3, "num_workers": 1, **changes})


def make_command(options: RecordOptions) -> list[str]:
    """Returns the command that makes records with these options."""
    files = [f"--input_file={','.join(options.input_file)}", f"--output_file={options.output_file[0]}"]
    names = "vocab_file max_seq_length max_predictions_per_seq dupe_factor num_shards block_tokens".split()
    return ["make-records", *files, *(f"--{name}={getattr(options, name)}" for name in names)]


def make_records(corpus: Corpus, folder: pathlib.Path, **changes: Any) -> dict[str, int]:
    """Makes records and returns their statistics."""
    return create_records(make_options(corpus, folder, **changes))


def contents(folder: pathlib.Path, pattern: str = "*") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob(pattern))}


def read_manifest(folder: pathlib.Path) -> dict[str, Any]:
    return json.loads((folder / "out.manifest.json").read_text())


def parse_records(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the features of all records in a folder."""
    paths = sorted(map(str, folder.glob("*.tfrecord")))
    records = tf.data.TFRecordDataset(paths, record_reader.get_compression(paths)).batch(100_000).get_single_element()
    batch = record_codec.parse(records, record_schema.pretraining_schema(LENGTH, PREDICTIONS))
    return {name: value.numpy() for name, value in batch.items()}


def make_instance_config(**changes: Any) -> InstanceConfig:
    sizes = {"max_seq_length": 16, "max_predictions_per_seq": 3, "cls": 2, "sep": 3}
    shares = {"masked_lm_prob": 0.15, "short_seq_prob": 0.0, "do_whole_word_mask": False}
    return InstanceConfig(**{**sizes, **shares, **changes})


def make_store(documents: list[list[list[int]]], folder: pathlib.Path, dtype: str = "<u4") -> token_store.TokenStore:
    """Stores documents whose sentences are lists of ids."""

    def encode(sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        ids = [list(map(int, sentence.split())) for sentence in sentences]
        return np.concatenate(ids), np.cumsum([0, *map(len, ids)])

    words = [[" ".join(map(str, sentence)) for sentence in document] for document in documents]
    token_store.write_part(str(folder / "part"), words, encode, np.dtype(dtype), [1])
    token_store.join_parts(str(folder / "corpus"), [str(folder / "part")])
    return token_store.TokenStore(str(folder / "corpus"), np.dtype(dtype))


def histogram(values: np.ndarray, top: int) -> np.ndarray:
    return np.bincount(np.minimum(values, top), minlength=top + 1)


def assert_alike(one: np.ndarray, two: np.ndarray, what: str, clusters: float = 1.0) -> None:
    """Compares two histograms with a chi-square test at five standard deviations. Rare values are pooled.

    If values come in clusters that share one random draw, the statistic grows by up to the cluster size.
    """
    rare = one + two < 20
    one, two = (np.append(each[~rare], each[rare].sum()).astype(float) for each in (one, two))
    one, two = one[one + two > 0], two[one + two > 0]
    scale = math.sqrt(two.sum() / one.sum())
    statistic = ((one * scale - two / scale) ** 2 / (one + two)).sum() / clusters
    freedom = len(one) - 1
    assert statistic < freedom + 5 * math.sqrt(2 * freedom) + 10, f"{what}: {statistic:.0f} for {freedom} degrees"
