"""Finds the files of a TensorFlow Datasets dataset by name (`tfds:NAME#SPLIT`), and reads their rows."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.utils import files

PREFIX = "tfds:"
_TRAIN = "train"
_FEATURES = "features.json"  # written into the folder of every prepared data set


def list_files(name: str) -> list[str]:
    """Returns the files of a dataset's split in order, without empty ones. Downloads and prepares it if needed.

    TensorFlow Datasets stores its files in the folder TFDS_DATA_DIR, or in ~/tensorflow_datasets by default.

    Args:
        name: `tfds:NAME#SPLIT`, or `tfds:NAME` for the split train.

    Raises:
        UserError: If the dataset cannot be loaded or the split does not exist.
    """
    import tensorflow_datasets as tfds  # takes a second, and few runs need it

    name, _, split = name.removeprefix(PREFIX).partition("#")
    try:
        builder = tfds.builder(name, data_dir=os.environ.get("TFDS_DATA_DIR"))
        builder.download_and_prepare()
    except Exception as error:  # of many classes: connection, disk, unknown version
        problem = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"cannot get {name} from TensorFlow Datasets: {problem}") from error
    splits = builder.info.splits
    split = split or _TRAIN
    if split not in splits:
        raise UserError(f"{name} has no split {split!r}; expected {PREFIX}{name}#SPLIT with one of {', '.join(splits)}")
    shards = zip(splits[split].filepaths, splits[split].shard_lengths, strict=True)
    return [os.fspath(path) for path, length in shards if length]


def is_prepared_file(path: str) -> bool:
    """Returns whether a file belongs to a dataset that TensorFlow Datasets prepared in the file's folder."""
    folder, name = os.path.split(path)
    return "-of-" in name and files.exists(os.path.join(folder, _FEATURES))


def read_rows(
    path: str, columns: Sequence[str] | None, part: tuple[int, int | None]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the position and the values of each row of a file. See row_files.read_rows.

    Text values are bytes. Class labels become their names, or None if the example is unlabeled (-1).

    Args:
        path: The file.
        columns: The columns to read. None reads all.
        part: Always WHOLE, because these files cannot be split.
    """
    import tensorflow as tf
    import tensorflow_datasets as tfds

    builder, split = _open_file(path)
    features, number = builder.info.features, 0
    _check_columns(path, features, columns)
    try:
        for row in tfds.as_numpy(builder.as_dataset(split=split)):
            number += 1
            yield f"row {number}", {key: _to_python(row[key], features[key]) for key in columns or row}
    except tf.errors.OpError as error:
        problem = error.message.splitlines()[0]
        raise UserError(
            f"{path} is damaged after row {number}: {problem}. Prepare or copy the data set again."
        ) from error


def _open_file(path: str) -> tuple[Any, str]:
    """Returns the dataset builder for the folder of a file, and the name of a split that consists of only this file."""
    import tensorflow_datasets as tfds

    folder, name = os.path.split(path)
    try:
        builder = tfds.builder_from_directory(folder)
    except Exception as error:  # of many classes, for a damaged description
        raise UserError(f"{folder} does not describe a data set of TensorFlow Datasets: {error}") from error
    for split, info in builder.info.splits.items():
        if name in info.filenames:
            shard = sorted(info.filenames).index(name)
            return builder, f"{split}[{shard}shard:{shard + 1}shard]"
    raise UserError(f"{path} is not a file of the data set in its folder; remove it, or pass {PREFIX}NAME")


def _check_columns(path: str, features: Any, columns: Sequence[str] | None) -> None:
    import tensorflow as tf

    for name in columns or ():
        if name not in features:
            raise UserError(f"{path} has no column {name!r}; the columns are {', '.join(map(repr, features))}")
        if features[name].tf_dtype != tf.string or features[name].shape:
            raise UserError(f"{path}: the column {name!r} is not text, but {features[name]}")


def _to_python(value: Any, feature: Any, is_nested: bool = False) -> Any:
    """Converts a value to Python types. Texts become bytes, except within lists and dicts, where they become strings.

    Args:
        value: A value as TensorFlow Datasets returns it.
        feature: The value's feature connector in TensorFlow Datasets, such as ClassLabel.
        is_nested: Whether the value is an item of a list or a dict.
    """
    if isinstance(value, dict):
        # A sequence of dicts comes as a dict of sequences.
        inner = getattr(feature, "feature", feature)
        return {name: _to_python(each, inner[name], is_nested=True) for name, each in value.items()}
    if getattr(value, "ndim", 0):
        return [_to_python(each, getattr(feature, "feature", feature), is_nested=True) for each in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace") if is_nested else value
    if hasattr(feature, "int2str"):
        return feature.int2str(int(value)) if value >= 0 else None
    return value.item()
