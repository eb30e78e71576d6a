"""Records of real prose and of short documents for the record-making tests."""

import pathlib

import numpy as np
import tensorflow as tf

from data_gen.options import RecordOptions
from data_gen.pipelines import one_machine
from data_gen.pipelines.summary import RecordSummary
from data_gen.rules.instances import InstanceConfig
from data_gen.text import token_store
from official_bert.data import record_codec, record_reader, record_schema

LENGTH, PREDICTIONS = 32, 5

Corpus = tuple[list[str], str]  # the paths of the text files, and the path of the vocabulary


def make_options(corpus: Corpus, folder: pathlib.Path, **changes: object) -> RecordOptions:
    folder.mkdir(parents=True, exist_ok=True)
    values = {
        "input_file": corpus[0],
        "output_file": [str(folder / "out.tfrecord")],
        "vocab_file": corpus[1],
        "max_seq_length": LENGTH,
        "max_predictions_per_seq": PREDICTIONS,
        "dupe_factor": 2,
        "num_shards": 3,
        "num_workers": 1,
        "block_tokens": 5000,
        **changes,
    }
    return RecordOptions(**values)  # type: ignore[arg-type]


def make_records(corpus: Corpus, folder: pathlib.Path, **changes: object) -> RecordSummary:
    return one_machine.create_pretraining_data(make_options(corpus, folder, **changes))


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def parsed(paths: list[pathlib.Path]) -> dict[str, np.ndarray]:
    schema = record_schema.pretraining_schema(LENGTH, PREDICTIONS)
    data = tf.data.TFRecordDataset([str(path) for path in paths], record_reader.get_compression(list(map(str, paths))))
    batch = record_codec.parse(next(iter(data.batch(10**6))), schema)
    return {name: value.numpy() for name, value in batch.items()}


def make_command(options: RecordOptions) -> list[str]:
    return [
        "-m", "official_bert_cli", "make-records", f"--input_file={','.join(options.input_file)}",
        f"--output_file={options.output_file[0]}", f"--vocab_file={options.vocab_file}", f"--max_seq_length={LENGTH}",
        f"--max_predictions_per_seq={PREDICTIONS}", f"--dupe_factor={options.dupe_factor}", "--num_shards=3",
        "--num_workers=2", f"--block_tokens={options.block_tokens}",
    ]  # fmt: skip


def unmasked(batch: dict[str, np.ndarray]) -> np.ndarray:
    ids = batch["input_ids"].copy()
    row, slot = np.nonzero(batch["masked_lm_weights"])
    ids[row, batch["masked_lm_positions"][row, slot]] = batch["masked_lm_ids"][row, slot]
    return ids


def make_instance_config(**changes: object) -> InstanceConfig:
    values = {
        "max_seq_length": 16, "max_predictions_per_seq": 3, "masked_lm_prob": 0.15, "short_seq_prob": 0.0,
        "do_whole_word_mask": False, "cls": 2, "sep": 3, **changes,
    }  # fmt: skip
    return InstanceConfig(**values)  # type: ignore[arg-type]


def make_store(documents: list[list[list[int]]], folder: pathlib.Path, dtype: str = "<u4") -> token_store.TokenStore:
    """Stores documents whose sentences are lists of ids."""

    def encode(sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        ids = [list(map(int, sentence.split())) for sentence in sentences]
        return np.concatenate(ids), np.cumsum([0, *map(len, ids)])

    words = [[" ".join(map(str, sentence)) for sentence in document] for document in documents]
    token_store.write_part(str(folder / "part"), words, encode, np.dtype(dtype), [1])
    token_store.join_parts(str(folder / "corpus"), [str(folder / "part")])
    return token_store.TokenStore(str(folder / "corpus"), np.dtype(dtype))
