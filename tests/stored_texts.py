"""Texts stored in every kind of file that holds rows."""

import gzip
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import tensorflow as tf

BATCH = 7  # rows of a row group or record batch


def table(texts: Sequence[str | bytes | None], type: Any = None) -> Any:
    return pa.table({"number": list(range(len(texts))), "text": pa.array(texts, type or pa.string())})


def parquet(folder: pathlib.Path, texts: Sequence[str | bytes | None], type: Any = None) -> str:
    path = folder / "texts.parquet"
    pa.parquet.write_table(table(texts, type), path, row_group_size=BATCH)
    return str(path)


def arrow_stream(path: pathlib.Path, stored: Any) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, stored.schema) as stream:
        stream.write_table(stored, max_chunksize=BATCH)


def hugging_face(folder: pathlib.Path, texts: Sequence[str | None], type: Any = None) -> str:
    """A folder as save_to_disk writes it."""
    folder /= "dataset"
    folder.mkdir()
    stored, half = table(texts, type), len(texts) // 2
    names = [f"data-{number:05}-of-00002.arrow" for number in range(2)]
    arrow_stream(folder / names[0], stored.slice(0, half))
    arrow_stream(folder / names[1], stored.slice(half))
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train", "_format_type": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return str(folder)


def example(**values: Any) -> bytes:
    """A tf.train.Example of one text or number each, or of lists."""
    feature = {}
    for name, value in values.items():
        several = value if isinstance(value, list) else [value]
        if isinstance(several[0], float):
            feature[name] = tf.train.Feature(float_list=tf.train.FloatList(value=several))
        elif isinstance(several[0], int):
            feature[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=several))
        else:
            content = [each if isinstance(each, bytes) else each.encode() for each in several]
            feature[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=content))
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def tfrecord(folder: pathlib.Path, texts: Sequence[str]) -> str:
    path = folder / "texts.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number, text in enumerate(texts):
            writer.write(example(number=number, text=text))
    return str(path)


def wet_record(kind: str, content: bytes, url: str = "", length: int | None = None) -> bytes:
    header = f"WARC/1.0\r\nWARC-Type: {kind}\r\n"
    header += f"WARC-Target-URI: {url}\r\n" if url else ""
    header += f"Content-Type: text/plain\r\nContent-Length: {len(content) if length is None else length}\r\n\r\n"
    return header.encode() + content + b"\r\n\r\n"


def wet_records(texts: Sequence[str]) -> list[bytes]:
    pages = [wet_record("conversion", text.encode(), f"http://x/{number}") for number, text in enumerate(texts)]
    return [wet_record("warcinfo", b"Software-Info: none\r\n"), *pages]


def wet(folder: pathlib.Path, texts: Sequence[str]) -> str:
    path = folder / "texts.warc.wet.gz"
    path.write_bytes(b"".join(map(gzip.compress, wet_records(texts))))
    return str(path)


STORED: dict[str, Callable[[pathlib.Path, Sequence[str]], str]] = {
    "parquet": parquet, "arrow": hugging_face, "tfrecord": tfrecord, "wet": wet,
}  # fmt: skip


def prepare_tfds(data_dir: pathlib.Path, texts: Sequence[str]) -> str:
    """Writes a data set as TensorFlow Datasets prepares it; returns its name."""
    import tensorflow_datasets as tfds

    features = tfds.features.FeaturesDict({"text": tfds.features.Text(), "number": tf.int64})
    folder = data_dir / "prose" / "small" / "1.0.0"
    folder.mkdir(parents=True)
    halves = [texts[: len(texts) // 2], texts[len(texts) // 2 :]]
    for number, half in enumerate(halves):
        with tf.io.TFRecordWriter(str(folder / f"prose-train.tfrecord-{number:05}-of-00002")) as writer:
            for text in half:
                writer.write(features.serialize_example({"text": text, "number": 1}))
    tfds.folder_dataset.write_metadata(
        data_dir=folder, features=features, filename_template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        split_infos=[
            tfds.core.SplitInfo(
                name="train", shard_lengths=list(map(len, halves)), num_bytes=0,
                filename_template=tfds.core.ShardedFileTemplate(
                    data_dir=folder, dataset_name="prose", split="train", filetype_suffix="tfrecord",
                    template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                ),
            )
        ],
    )  # fmt: skip
    info = json.loads((folder / "dataset_info.json").read_text())
    (folder / "dataset_info.json").write_text(json.dumps({**info, "name": "prose", "configName": "small"}))
    return "prose/small"
