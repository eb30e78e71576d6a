"""Reading scalars from TensorBoard event files."""

import pathlib

import tensorflow as tf


def read_scalars(folder: pathlib.Path) -> dict[str, dict[int, float]]:
    """Returns the scalars in the event files of a folder, as values by name and step."""
    scalars: dict[str, dict[int, float]] = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                scalars.setdefault(value.tag, {})[event.step] = float(tf.make_ndarray(value.tensor))
    return scalars
