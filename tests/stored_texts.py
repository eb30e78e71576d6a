"""Texts stored in every file format that holds rows."""

import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import tensorflow as tf

BATCH = 7  # rows per row group or record batch


def table(texts: Sequence[str | bytes | None], type: Any = None) -> Any:
    return pa.table({"number": list(range(len(texts))), "text": pa.array(texts, type or pa.string())})


def parquet(folder: pathlib.Path, texts: Sequence[str | bytes | None], type: Any = None) -> str:
    path = folder / "texts.parquet"
    pa.parquet.write_table(table(texts, type), path, row_group_size=BATCH)
    return str(path)


def hugging_face(folder: pathlib.Path, texts: Sequence[str | None], type: Any = None) -> str:
    """Writes a folder as save_to_disk does."""
    folder /= "dataset"
    folder.mkdir(parents=True)
    stored, half = table(texts, type), len(texts) // 2
    names = [f"data-{number:05}-of-00002.arrow" for number in range(2)]
    for name, part in zip(names, (stored.slice(0, half), stored.slice(half)), strict=True):
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, part.schema) as stream:
            stream.write_table(part, max_chunksize=BATCH)
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train", "_format_type": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return str(folder)


STORED: dict[str, Callable[[pathlib.Path, Sequence[str]], str]] = {"parquet": parquet, "arrow": hugging_face}


def prepare_tfds(data_dir: pathlib.Path, texts: Sequence[str]) -> str:
    """Writes texts as a TensorFlow Datasets data set, and returns its name."""
    import tensorflow_datasets as tfds

    rows = [{"text": text, "number": number} for number, text in enumerate(texts)]
    return prepare_tfds_rows(data_dir, rows, text=tfds.features.Text(), number=tf.int64)


def prepare_tfds_rows(data_dir: pathlib.Path, rows: Sequence[dict[str, Any]], **features: Any) -> str:
    """Writes rows as a TensorFlow Datasets data set in two files, and returns its name."""
    import tensorflow_datasets as tfds

    connectors = tfds.features.FeaturesDict(features)
    folder = data_dir / "prose" / "small" / "1.0.0"
    folder.mkdir(parents=True)
    halves = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    for number, half in enumerate(halves):
        with tf.io.TFRecordWriter(str(folder / f"prose-train.tfrecord-{number:05}-of-00002")) as writer:
            for row in half:
                writer.write(connectors.serialize_example(row))
    names = tfds.core.ShardedFileTemplate(folder, dataset_name="prose", split="train", filetype_suffix="tfrecord")
    split = tfds.core.SplitInfo("train", list(map(len, halves)), num_bytes=0, filename_template=names)
    tfds.folder_dataset.write_metadata(data_dir=folder, features=connectors, split_infos=[split])
    info = json.loads((folder / "dataset_info.json").read_text())
    (folder / "dataset_info.json").write_text(json.dumps({**info, "name": "prose", "configName": "small"}))
    return "prose/small"
