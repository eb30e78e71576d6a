"""Small SavedModels with the signatures of exported models, for the server tests. They are not BERT models.

Each computes its answers from the text with a rule that a test can repeat.
"""

import json
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from official_bert.checkpoints import checksums
from official_bert.inference import exports

TEXT = tf.TensorSpec([None], tf.string, "text")


def write(folder: pathlib.Path, version: int, kind: str, inputs: Sequence[str], labels: Sequence[str] | None = None,
          functions: dict[str, Any] | None = None) -> pathlib.Path:  # fmt: skip
    """Writes FOLDER/<version> atomically in the layout of an export, with checksums, and returns it."""
    module = tf.Module()
    module.weight = tf.Variable(tf.zeros([1000]))  # so that the model has variables
    signatures = {name: tf.function(each, input_signature=each.specs) for name, each in (functions or {}).items()}
    folder.mkdir(parents=True, exist_ok=True)
    whole, beside = folder / str(version), folder / f"writing-{version}"
    tf.saved_model.save(module, str(beside), {name: each.get_concrete_function() for name, each in signatures.items()})
    description = {"kind": kind, "task": "test", "inputs": list(inputs), "labels": labels, "max_seq_length": 10_000,
                   "do_lower_case": True, "version_of_official_bert": "0"}  # fmt: skip
    metadata = beside / exports.METADATA_FILE
    metadata.parent.mkdir()
    metadata.write_text(json.dumps(description))
    checksums.write(str(beside), [os.path.relpath(path, beside) for path in exports.list_model_files(str(beside))], {})
    beside.rename(whole)
    return whole


def taking(*specs: tf.TensorSpec) -> Callable[[Any], Any]:
    """Records the arguments of a function."""

    def noted(function: Any) -> Any:
        function.specs = specs
        return function

    return noted


def classifier(folder: pathlib.Path, version: int = 1) -> pathlib.Path:
    """The probability of "long" is the number of characters / 100. Ids are summed. "!" is refused."""

    @taking(TEXT)
    def serving_default(text):
        refused = tf.reduce_any(tf.equal(text, "!"))
        with tf.control_dependencies([tf.debugging.Assert(~refused, ["no ! please"])]):
            share = tf.cast(tf.strings.length(text, "UTF8_CHAR"), tf.float32) / 100.0
        probabilities = tf.stack([1 - share, share], -1)
        labels = tf.constant(["short", "long"])
        return {
            "label": tf.gather(labels, tf.argmax(probabilities, -1)),
            "probability": tf.reduce_max(probabilities, -1),
            "labels": tf.tile(labels[None], [tf.shape(text)[0], 1]),
            "probabilities": probabilities,
            "is_truncated": share > 1.0,
        }

    ids = [tf.TensorSpec([None, None], tf.int32, name) for name in ("input_ids", "input_mask", "segment_ids")]

    @taking(*ids)
    def serving_ids(input_ids, input_mask, segment_ids):
        return {"sums": tf.reduce_sum(input_ids * input_mask + segment_ids, -1)}

    return write(folder, version, "classification", ["text"], ["short", "long"],
                 {"serving_default": serving_default, "serving_ids": serving_ids})  # fmt: skip


def versioned(folder: pathlib.Path, version: int = 1) -> pathlib.Path:
    """A regression model whose answer is version * 1000 + bytes of the text."""

    @taking(TEXT)
    def serving_default(text):
        return {"value": tf.cast(tf.strings.length(text) + version * 1000, tf.float32)}

    return write(folder, version, "regression", ["text"], None, {"serving_default": serving_default})


def tagger(folder: pathlib.Path, version: int = 1) -> pathlib.Path:
    """Tags words between single spaces: NAME if capitalized, I-NAME (a continued name) if they start with a digit.

    `tokenize` returns a window of 8 ids for each 4 bytes.
    """

    @taking(TEXT)
    def serving_default(text):
        ragged = tf.strings.split(text, " ")
        lengths = ragged.with_values(
            tf.strings.length(ragged.values, "UTF8_CHAR"))  # fmt: skip
        starts = tf.cumsum(lengths.to_tensor(0) + 1, axis=1, exclusive=True)
        real = tf.sequence_mask(ragged.row_lengths(), tf.shape(starts)[1])
        words = ragged.to_tensor("")
        name = tf.strings.regex_full_match(words, r"\p{Lu}.*")
        goes_on = tf.strings.regex_full_match(words, r"\d.*")
        return {
            "words": words,
            "tags": tf.where(real, tf.where(name, "NAME", tf.where(goes_on, "I-NAME", "O")), ""),
            "starts": tf.where(real, starts, -1),
            "ends": tf.where(real, starts + lengths.to_tensor(0), -1),
            "probabilities": tf.where(real, 0.75, 0.0),
        }

    @taking(TEXT)
    def tokenize(text):
        windows = tf.repeat(tf.range(tf.size(text)), -(-tf.strings.length(text) // 4))
        return {"input_ids": tf.zeros([tf.size(windows), 8], tf.int32), "text_index": windows}

    functions = {"serving_default": serving_default, "tokenize": tokenize}
    return write(folder, version, "tagging", ["text"], ["O", "NAME", "I-NAME"], functions)


def fill_mask(folder: pathlib.Path, version: int = 1) -> pathlib.Path:
    """Suggests the same five words for every [MASK]."""

    @taking(TEXT)
    def serving_default(text):
        masks = tf.cast(tf.strings.length(text) - tf.strings.length(tf.strings.regex_replace(text, r"\[MASK\]", "")),
                        tf.int32) // 6  # fmt: skip
        real = tf.sequence_mask(masks)[..., None]  # [B, M, 1]
        return {
            "tokens": tf.where(real, tf.constant(["paris", "lyon", "<b>x</b>", "rome", "nice"]), ""),
            "probabilities": tf.where(real, tf.constant([0.5, 0.25, 0.125, 0.0625, 0.03125]), 0.0),
        }

    return write(folder, version, "fill_mask", ["text"], None, {"serving_default": serving_default})


def question_answering(folder: pathlib.Path, version: int = 1) -> pathlib.Path:
    """Answers with the first word of the context. Offsets count characters."""
    specs = [tf.TensorSpec([None], tf.string, name) for name in ("question", "context")]

    @taking(*specs)
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

    return write(folder, version, "question_answering", ["question", "context"], None,
                 {"serving_default": serving_default})  # fmt: skip


def multiple_choice(folder: pathlib.Path, version: int = 1) -> pathlib.Path:
    """Chooses the longest of four endings."""

    @taking(tf.TensorSpec([None], tf.string, "prompt"), tf.TensorSpec([None, 4], tf.string, "endings"))
    def serving_default(prompt, endings):
        lengths = tf.cast(tf.strings.length(endings), tf.float32) + 0.0 * tf.cast(
            tf.strings.length(prompt), tf.float32)[:, None]  # fmt: skip
        return {"choice": tf.argmax(lengths, -1, tf.int32), "probabilities": tf.nn.softmax(lengths)}

    return write(folder, version, "multiple_choice", ["prompt", "endings"], None,
                 {"serving_default": serving_default})  # fmt: skip


def encoder(folder: pathlib.Path, version: int = 1) -> pathlib.Path:
    """The code of each ASCII character, padded to the longest text. `tokenize` returns all of them in one row."""

    @taking(TEXT)
    def serving_default(text):
        codes = tf.strings.unicode_decode(text, "UTF-8")
        mask = tf.sequence_mask(codes.row_lengths(), dtype=tf.int32)
        return {"sequence_output": tf.cast(codes.to_tensor(), tf.float32)[..., None], "input_mask": mask}

    @taking(TEXT)
    def tokenize(text):
        return {"input_ids": tf.strings.unicode_decode(text, "UTF-8").flat_values}

    return write(folder, version, "encoder", ["text"], None, {"serving_default": serving_default, "tokenize": tokenize})


def pair(folder: pathlib.Path, version: int = 1) -> pathlib.Path:
    """Multi-label on a text pair: one label for each text, with the probability bytes / 100."""
    specs = [tf.TensorSpec([None], tf.string, name) for name in ("text", "text_pair")]

    @taking(*specs)
    def serving_default(text, text_pair):
        probabilities = (
            tf.cast(tf.stack([tf.strings.length(text), tf.strings.length(text_pair)], -1), tf.float32) / 100.0
        )
        labels = tf.tile(tf.constant([["first", "second"]]), [tf.shape(text)[0], 1])
        return {"labels": labels, "probabilities": probabilities}

    return write(folder, version, "multi_label", ["text", "text_pair"], ["first", "second"],
                 {"serving_default": serving_default})  # fmt: skip


ALL = {"length": classifier, "size": versioned, "names": tagger, "mask": fill_mask, "answers": question_answering,
       "endings": multiple_choice, "pair": pair}  # fmt: skip
