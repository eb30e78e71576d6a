"""A model whose answers identify the batch that a text was in."""

import pathlib
from typing import Any

import tensorflow as tf

from official_bert.inference import batch_prediction, exports
from tests.make import write_text


class Batches(tf.Module):
    """Returns each text, its length and the longest of its batch. It raises an error for one text."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def answer(self, text: Any) -> dict[str, Any]:
        tf.debugging.assert_none_equal(text, "refused")
        lengths = tf.strings.length(text, "UTF8_CHAR")
        longest = tf.fill(tf.shape(text), tf.reduce_max(lengths))
        return {"length": lengths, "longest": longest, "text": text, "is_truncated": lengths > 50}


def interrupt_at_group(number: int, patch: Any) -> list[list[str]]:
    """Lets batch prediction stop, as by Ctrl-C, at a group of rows. Returns a list that receives each group's texts."""
    answer_rows, groups = batch_prediction.answer_rows, list[list[str]]()

    def interrupted(model: Any, rows: Any, batch_size: int) -> Any:
        groups.append([row["text"] for row in rows])
        if len(groups) == number:
            raise KeyboardInterrupt
        return answer_rows(model, rows, batch_size)

    patch.setattr(batch_prediction, "answer_rows", interrupted)
    return groups


def export_batches(folder: pathlib.Path) -> str:
    """Exports the model to a folder and returns its path."""
    module = Batches()
    tf.saved_model.save(module, str(folder), signatures=module.answer)
    write_text(folder / exports.METADATA_FILE, '{"inputs": ["text"], "max_seq_length": 50}')
    return str(folder)
