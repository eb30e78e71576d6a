"""Small SavedModels with the signatures of exported models, for the server tests. They are not BERT models.

Each computes its answers from the text with a rule that a test can repeat.
"""

import inspect
import json
import os
import pathlib
from typing import Any

import tensorflow as tf

from official_bert.checkpoints import checksums
from official_bert.inference import exports


def _specs(function: Any) -> list[tf.TensorSpec]:
    """Returns the specs of a signature: its inputs are the parameters of the function."""
    ids = ("input_ids", "input_mask", "segment_ids")
    specs = {name: tf.TensorSpec([None, None], tf.int32, name) for name in ids}
    specs["endings"] = tf.TensorSpec([None, 4], tf.string, "endings")
    return [specs.get(name, tf.TensorSpec([None], tf.string, name)) for name in inspect.signature(function).parameters]


def write(folder: pathlib.Path, version: int, kind: str, serving_default: Any, labels: Any = None, **functions: Any):
    """Writes FOLDER/<version> atomically in the layout of an export, with checksums, and returns it."""
    module = tf.Module()
    module.weight = tf.Variable(tf.zeros([1000]))  # so that the model has variables
    signatures = {
        name: tf.function(each, input_signature=_specs(each), autograph=False).get_concrete_function()
        for name, each in {"serving_default": serving_default, **functions}.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"writing-{version}"
    tf.saved_model.save(module, str(unfinished), signatures)
    metadata = unfinished / exports.METADATA_FILE
    metadata.parent.mkdir()
    inputs = [spec.name for spec in _specs(serving_default)]
    description = {"kind": kind, "task": "test", "inputs": inputs, "labels": labels, "max_seq_length": 10_000}
    metadata.write_text(json.dumps({**description, "do_lower_case": True, "version_of_official_bert": "0"}))
    model_files = exports.list_model_files(str(unfinished))
    checksums.write(str(unfinished), [os.path.relpath(path, unfinished) for path in model_files], {})
    return unfinished.rename(folder / str(version))


def classifier(folder: pathlib.Path, version: int = 1) -> pathlib.Path:
    """The probability of "long" is the number of characters / 100. Ids are summed. "!" is refused."""

    def serving_default(text):
        refused = tf.reduce_any(tf.equal(text, "!"))
        with tf.control_dependencies([tf.debugging.Assert(~refused, ["no ! please"])]):
            share = tf.cast(tf.strings.length(text, "UTF8_CHAR"), tf.float32) / 100.0
        probabilities = tf.stack([1 - share, share], -1)
        return {
            "label": tf.where(share > 0.5, "long", "short"),
            "probability": tf.reduce_max(probabilities, -1),
            "labels": tf.tile([["short", "long"]], [tf.shape(text)[0], 1]),
            "probabilities": probabilities,
            "is_truncated": share > 1.0,
        }

    def serving_ids(input_ids, input_mask, segment_ids):
        return {"sums": tf.reduce_sum(input_ids * input_mask + segment_ids, -1)}

    return write(folder, version, "classification", serving_default, ["short", "long"], serving_ids=serving_ids)


def versioned(folder: pathlib.Path, version: int = 1) -> pathlib.Path:
    """A regression model whose answer is version * 1000 + bytes of the text."""

    def serving_default(text):
        return {"value": tf.cast(tf.strings.length(text) + version * 1000, tf.float32)}

    return write(folder, version, "regression", serving_default)


def tagger(folder: pathlib.Path, version: int = 1) -> pathlib.Path:
    """Tags words between single spaces: NAME if capitalized, I-NAME (a continued name) if they start with a digit.

    `tokenize` returns a window of 8 ids for each 4 bytes.
    """

    def serving_default(text):
        ragged = tf.strings.split(text, " ")
        words = ragged.to_tensor("")
        lengths = tf.strings.length(words, "UTF8_CHAR")
        starts = tf.cumsum(lengths + 1, axis=1, exclusive=True)
        real = tf.sequence_mask(ragged.row_lengths(), tf.shape(starts)[1])
        tags = tf.where(tf.strings.regex_full_match(words, r"\d.*"), "I-NAME", "O")
        tags = tf.where(tf.strings.regex_full_match(words, r"\p{Lu}.*"), "NAME", tags)
        return {
            "words": words,
            "tags": tf.where(real, tags, ""),
            "starts": tf.where(real, starts, -1),
            "ends": tf.where(real, starts + lengths, -1),
            "probabilities": tf.where(real, 0.75, 0.0),
        }

    def tokenize(text):
        windows = tf.repeat(tf.range(tf.size(text)), -(-tf.strings.length(text) // 4))
        return {"input_ids": tf.zeros([tf.size(windows), 8], tf.int32), "text_index": windows}

    return write(folder, version, "tagging", serving_default, ["O", "NAME", "I-NAME"], tokenize=tokenize)


def fill_mask(folder: pathlib.Path, version: int = 1) -> pathlib.Path:
    """Suggests the same five words for every [MASK]."""

    def serving_default(text):
        without = tf.strings.regex_replace(text, r"\[MASK\]", "")
        masks = (tf.strings.length(text) - tf.strings.length(without)) // 6
        real = tf.sequence_mask(masks)[..., None]  # [B, M, 1]
        return {
            "tokens": tf.where(real, tf.constant(["paris", "lyon", "<b>x</b>", "rome", "nice"]), ""),
            "probabilities": tf.where(real, tf.constant([0.5, 0.25, 0.125, 0.0625, 0.03125]), 0.0),
        }

    return write(folder, version, "fill_mask", serving_default)


def question_answering(folder: pathlib.Path, version: int = 1) -> pathlib.Path:
    """Answers with the first word of the context. Offsets count characters."""

    def serving_default(question, context):
        answer = tf.strings.regex_replace(context, r"(?s)[ ].*", "")
        end = tf.strings.length(answer, "UTF8_CHAR")
        return {
            "answer": answer,
            "start": tf.zeros_like(end),
            "end": end,
            "probability": tf.fill(tf.shape(end), 0.875),
            "null_score_difference": tf.cast(tf.strings.length(question), tf.float32) - 100.0,
        }

    return write(folder, version, "question_answering", serving_default)


def multiple_choice(folder: pathlib.Path, version: int = 1) -> pathlib.Path:
    """Chooses the longest of four endings."""

    def serving_default(prompt, endings):
        lengths = tf.cast(tf.strings.length(endings) + 0 * tf.strings.length(prompt)[:, None], tf.float32)
        return {"choice": tf.argmax(lengths, -1, tf.int32), "probabilities": tf.nn.softmax(lengths)}

    return write(folder, version, "multiple_choice", serving_default)


def encoder(folder: pathlib.Path, version: int = 1) -> pathlib.Path:
    """The code of each ASCII character, padded to the longest text. `tokenize` returns all of them in one row."""

    def serving_default(text):
        codes = tf.strings.unicode_decode(text, "UTF-8")
        mask = tf.sequence_mask(codes.row_lengths(), dtype=tf.int32)
        return {"sequence_output": tf.cast(codes.to_tensor(), tf.float32)[..., None], "input_mask": mask}

    def tokenize(text):
        return {"input_ids": tf.strings.unicode_decode(text, "UTF-8").flat_values}

    return write(folder, version, "encoder", serving_default, tokenize=tokenize)


def pair(folder: pathlib.Path, version: int = 1) -> pathlib.Path:
    """Multi-label on a text pair: one label for each text, with the probability bytes / 100."""

    def serving_default(text, text_pair):
        lengths = tf.strings.length(tf.stack([text, text_pair], -1))
        labels = tf.tile([["first", "second"]], [tf.shape(text)[0], 1])
        return {"labels": labels, "probabilities": tf.cast(lengths, tf.float32) / 100.0}

    return write(folder, version, "multi_label", serving_default, ["first", "second"])


ALL = {"length": classifier, "size": versioned, "names": tagger, "mask": fill_mask, "answers": question_answering,
       "endings": multiple_choice, "pair": pair, "encoder": encoder}  # fmt: skip
