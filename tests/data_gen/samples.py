"""Records of real prose and of short documents, for the tests of what makes them."""

import pathlib
import sys

import numpy as np
import tensorflow as tf

from data_gen.options import RecordOptions
from official_bert.data import record_codec, record_reader, record_schema

LENGTH, PREDICTIONS = 32, 5


def options_for(corpus: tuple[list[str], str], folder: pathlib.Path, **changes: object) -> RecordOptions:
    folder.mkdir(parents=True, exist_ok=True)
    values = {
        "input_file": corpus[0],
        "output_file": [str(folder / "out.tfrecord")],
        "vocab_file": corpus[1],
        "max_seq_length": LENGTH,
        "max_predictions_per_seq": PREDICTIONS,
        "dupe_factor": 2,
        "num_shards": 3,
        "num_workers": 2,
        "block_tokens": 5000,
        **changes,
    }
    return RecordOptions(**values)  # type: ignore[arg-type]


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def parsed(paths: list[pathlib.Path]) -> dict[str, np.ndarray]:
    schema = record_schema.pretraining_schema(LENGTH, PREDICTIONS)
    data = tf.data.TFRecordDataset([str(path) for path in paths], record_reader.compression(list(map(str, paths))))
    batch = record_codec.parse(next(iter(data.batch(10**6))), schema)
    return {name: value.numpy() for name, value in batch.items()}


def command_for(options: RecordOptions) -> list[str]:
    return [
        sys.executable, "-m", "official_bert_cli", "make-records", f"--input_file={','.join(options.input_file)}",
        f"--output_file={options.output_file[0]}", f"--vocab_file={options.vocab_file}", f"--max_seq_length={LENGTH}",
        f"--max_predictions_per_seq={PREDICTIONS}", f"--dupe_factor={options.dupe_factor}", "--num_shards=3",
        "--num_workers=2", f"--block_tokens={options.block_tokens}",
    ]  # fmt: skip


def unmasked(batch: dict[str, np.ndarray]) -> np.ndarray:
    ids = batch["input_ids"].copy()
    row, slot = np.nonzero(batch["masked_lm_weights"])
    ids[row, batch["masked_lm_positions"][row, slot]] = batch["masked_lm_ids"][row, slot]
    return ids


def short_options(short_texts: list[str], vocab: str, tmp_path: pathlib.Path, **changes: object) -> RecordOptions:
    values = {
        "input_file": short_texts,
        "output_file": [str(tmp_path / "a.tfrecord"), str(tmp_path / "b.tfrecord")],
        "vocab_file": vocab,
        "max_seq_length": 24,
        "max_predictions_per_seq": 4,
        "dupe_factor": 3,
        "algorithm": "reference",
        **changes,
    }
    return RecordOptions(**values)  # type: ignore[arg-type]
