"""Data sets of TensorFlow Datasets: had by name, and the files that they were prepared into."""

import os
from typing import Any

from official_bert.errors import UserError

PREFIX = "tfds:"
_TRAIN = "train"


def prepared(name: str, data_dir: str | None) -> Any:
    """Returns the builder of a data set, which is downloaded and prepared where that was not done before.

    Args:
        name: as TensorFlow Datasets names it, such as glue/sst2.
        data_dir: where it keeps its files; None for its default.

    Raises:
        UserError: there is none of that name, or it cannot be had.
    """
    import tensorflow_datasets as tfds  # takes a second, and few runs need it

    try:
        builder = tfds.builder(name, data_dir=data_dir)
        builder.download_and_prepare()
    except Exception as error:  # of many classes: no connection, no disk, no such version
        problem = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"cannot get {name} from TensorFlow Datasets: {problem}") from error
    return builder


def files_of(spelled: str) -> list[str]:
    """Returns the files of `tfds:NAME` or `tfds:NAME#SPLIT`, in order; without a split, those of train.

    They are looked for where TensorFlow Datasets keeps its files: in TFDS_DATA_DIR, or its default.

    Raises:
        UserError: the data set cannot be had, or has not this split.
    """
    name, _, split = spelled.removeprefix(PREFIX).partition("#")
    builder = prepared(name, os.environ.get("TFDS_DATA_DIR"))
    splits = builder.info.splits
    wanted = split or _TRAIN
    if wanted not in splits:
        raise UserError(
            f"{name} has no split {wanted!r}; expected {PREFIX}{name}#SPLIT with one of {', '.join(splits)}"
        )
    stored = builder.info.file_format.value
    if stored not in ("tfrecord", "parquet"):
        raise UserError(
            f"{name} was prepared as {stored}; expected tfrecord or parquet: prepare it with that file format"
        )
    return [os.fspath(path) for path in splits[wanted].filepaths]
