"""A model whose answers identify the batch that a text was in."""

import pathlib
from typing import Any

import tensorflow as tf

from official_bert.inference import exports


class Batches(tf.Module):
    """A model whose answers identify the batch that a text was in. It raises an error for one text."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def lengths(self, text: Any) -> dict[str, Any]:
        tf.debugging.assert_none_equal(text, "refused")
        lengths = tf.strings.length(text)
        return {"length": lengths, "longest": tf.fill(tf.shape(text), tf.reduce_max(lengths)), "text": text}


def export_batches(folder: pathlib.Path) -> str:
    """Exports the model to a folder and returns its path."""
    module = Batches()
    tf.saved_model.save(module, str(folder), signatures=module.lengths)
    metadata = folder / exports.METADATA_FILE
    metadata.parent.mkdir()
    metadata.write_text('{"inputs": ["text"]}')
    return str(folder)
