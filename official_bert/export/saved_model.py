"""Saves a trained model as a SavedModel that takes text, in the layout that TensorFlow Serving watches.

EXPORT_DIR/<version>/ holds the SavedModel with its vocabulary in assets/vocab.txt, and in assets.extra the export's
metadata (official_bert.json) and the requests by which TensorFlow Serving warms up. It needs nothing but TensorFlow and
tensorflow-text where it is loaded, and may be moved.
"""

import dataclasses
import json
import os
import tempfile
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from official_bert.checkpoints import checksums, finetuned, loading, named_models, reading
from official_bert.checkpoints.checkpoint import MASKED_LM, VOCAB_FILE, Checkpoint
from official_bert.checkpoints.formats import fine_tuned
from official_bert.errors import UserError
from official_bert.export import operations, plain_answers, replay, tf_hub, warmup
from official_bert.export.options import FLOAT32, ONNX_RUNTIME, TENSORFLOW, SavedModelOptions
from official_bert.export.text_models import ENCODER, FILL_MASK, text_model
from official_bert.inference import exports
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.tokenization.exact import FullTokenizer
from official_bert.utils import files
from official_bert.utils.tensorflow_import import warnings_alone
from official_bert.version import __version__

_LEAST_LENGTH = 8


@dataclasses.dataclass(frozen=True)
class Source:
    """A trained model, and what it answers."""

    model: keras.Model  # that TextModel takes
    config: BertConfig  # the encoder's
    tokenizer: FullTokenizer
    vocab: str  # the text of the vocab.txt
    kind: str  # what it answers
    task_spec: dict[str, Any]  # what task.json holds; for models without one task, labels and max_seq_length


def read_source(folder: str, encoder: bool = False, max_seq_length: int | None = None) -> Source:
    """Returns the model of a folder: a fine-tuned one, a masked-LM one, or an encoder.

    Args:
        folder: a fine-tuned model's folder, or a checkpoint of any format that convert reads.
        encoder: whether the encoder is wanted, whatever its head.
        max_seq_length: the longest sequence; None for that of fine-tuning or of the model.

    Raises:
        UserError: there is no such model, it has no vocabulary, or the length does not fit.
    """
    folder = named_models.local_folder(folder)
    if finetuned.is_finetuned(folder):
        source = _finetuned(folder, encoder)
    else:
        _, checkpoint = reading.read(folder)
        if checkpoint.vocab is None:
            raise UserError(f"{folder} has no {VOCAB_FILE}, which a model that takes text needs; copy it there")
        no_masked_lm = MASKED_LM not in checkpoint.parts or checkpoint.config.causal_attention
        if fine_tuned.head_of(checkpoint) and not encoder:
            source = _with_head(folder, checkpoint)
        else:
            source = _pretrained(folder, checkpoint, encoder or no_masked_lm)
    if max_seq_length is not None:
        source.task_spec["max_seq_length"] = max_seq_length
    if not _LEAST_LENGTH <= source.task_spec["max_seq_length"] <= source.config.max_position_embeddings:
        raise UserError(
            f"the longest sequence is {source.task_spec['max_seq_length']} tokens; expected {_LEAST_LENGTH} to "
            f"{source.config.max_position_embeddings}, the positions of the model"
        )
    return source


def _finetuned(folder: str, encoder: bool) -> Source:
    model, config, tokenizer, task_spec = finetuned.load(folder)
    vocab = files.read_text(os.path.join(folder, VOCAB_FILE))
    if not encoder:
        return Source(model, config, tokenizer, vocab, task_spec["kind"], dict(task_spec))
    trained = {variable.path: variable for variable in model.variables}
    whole = build_encoder(config)
    if any(variable.path not in trained for variable in whole.variables):  # the head looks past the pooler
        whole = keras.Model(whole.input, {"sequence_output": whole.output["sequence_output"]}, name="encoder")
    absent = [variable.path for variable in whole.variables if variable.path not in trained]
    if absent:
        raise UserError(
            f"{folder} has no {absent[0]}, since its head, {task_spec.get('head')}, does not read the last block; its "
            "encoder was not trained: give the checkpoint that fine-tuning began with"
        )
    for variable in whole.variables:
        variable.assign(trained[variable.path])
    return Source(whole, config, tokenizer, vocab, ENCODER, _spec_without_task(task_spec["max_seq_length"]))


def _with_head(folder: str, checkpoint: Checkpoint) -> Source:
    """The fine-tuned model of another library."""
    model, kept = fine_tuned.build(checkpoint)
    for note in kept.notes:
        print(f"note: {note}")
    vocab, spec = kept.vocab or "", dict(kept.task_spec or {})
    tokenizer = FullTokenizer.from_vocab(vocab, kept.do_lower_case, f"the vocabulary of {folder}")
    return Source(model, kept.config, tokenizer, vocab, spec["kind"], spec)


def _pretrained(folder: str, checkpoint: Checkpoint, encoder: bool) -> Source:
    loaded = loading.load(folder)
    model, config, vocab = loaded.encoder, checkpoint.config, checkpoint.vocab or ""
    if not encoder:
        whole = build_pretraining_model(config)
        model = keras.Model(whole.input, whole.output["masked_lm_logits"], name="masked_lm")
        for variable in model.variables:
            variable.assign(checkpoint.weights[variable.path])
    kind = ENCODER if encoder else FILL_MASK
    return Source(model, config, loaded.tokenizer, vocab, kind, _spec_without_task(config.max_position_embeddings))


def _spec_without_task(max_seq_length: int) -> dict[str, Any]:
    return {"task": None, "labels": None, "max_seq_length": max_seq_length}


def export(options: SavedModelOptions) -> str:
    """Exports as the options say; returns the new version's folder, which appears when it is whole.

    On a remote file system, where renaming a folder is many steps, a watching server may see it before that.

    Raises:
        UserError: the model cannot be read, or the version is there already.
    """
    if options.engine == ONNX_RUNTIME and options.hub:
        raise UserError("--hub is a SavedModel by TensorFlow Hub's conventions; leave it or --engine out")
    if options.engine == TENSORFLOW and options.quantization != FLOAT32:
        raise UserError(f"--quantization={options.quantization} goes with --engine={ONNX_RUNTIME}; leave one out")
    source = read_source(options.model_dir, options.encoder or options.hub, options.max_seq_length)
    version = next_version(options.export_dir) if options.version is None else options.version
    if version < 1:
        raise UserError(f"--version={version}; expected 1 or more")
    path = os.path.join(options.export_dir, str(version))
    with files.folder_written_whole(path) as folder:
        if options.engine == ONNX_RUNTIME:
            from official_bert.export import onnx_export

            onnx_export.write(source, folder, options)
        elif options.hub:
            if options.eval_file:
                raise UserError("--eval_file goes with a head, which --hub leaves out; leave it out")
            tf_hub.write(source.model, source.config, source.tokenizer, source.vocab, folder)
            for part in (tf_hub.ENCODER_FOLDER, tf_hub.PREPROCESS_FOLDER):
                _check_operations(os.path.join(folder, part), options.for_serving)
            _prove_hub(source, folder)
        else:
            write(source, folder, options.eval_file, options.for_serving)
    return path


def next_version(export_dir: str) -> int:
    """Returns one more than the greatest version of an export folder; 1 where there is none."""
    return 1 + max(exports.version_folders(export_dir), default=0)


def write(source: Source, folder: str, eval_file: str | None = None, for_serving: str | None = None) -> None:
    """Writes the SavedModel with all that belongs to it into a folder.

    Args:
        source: the model.
        folder: where to.
        eval_file: labelled examples of the model's task, of which some are among the texts that prove it.
        for_serving: the release of TensorFlow Serving whose operations alone may be used; None for any one.

    Raises:
        UserError: what was written answers otherwise than predict, or uses an operation that the release lacks.
    """
    functions = text_model(source.model, source.tokenizer, source.kind, source.task_spec)
    module = tf.Module()
    # The bare variables: Keras' objects would want Keras where the export is loaded.
    module.model_variables = [variable.value for variable in source.model.variables]
    signatures = functions.signatures()
    with tempfile.TemporaryDirectory() as local:
        vocab_file = os.path.join(local, VOCAB_FILE)
        files.write_text(vocab_file, source.vocab)
        module.vocabulary = tf.saved_model.Asset(vocab_file)
        with warnings_alone():  # not where it wrote the assets: the folder gets another name
            tf.saved_model.save(module, folder, signatures=signatures)
    _check_operations(folder, for_serving)
    metadata = metadata_of(source, functions.inputs) | {
        "tensorflow_serving": [release for release in operations.releases() if not operations.lacking(folder, release)],
    }
    files.write_text(
        os.path.join(folder, exports.METADATA_FILE), json.dumps(metadata, indent=1, ensure_ascii=False) + "\n"
    )
    files.write_bytes(os.path.join(folder, exports.WARMUP_FILE), warmup.warmup_requests(functions.inputs))
    _prove(source, folder, eval_file)
    checksums.write(folder, [os.path.relpath(path, folder) for path in exports.files_of(folder)], {})


def _check_operations(folder: str, for_serving: str | None) -> None:
    if for_serving is not None and (missing := operations.lacking(folder, for_serving)):
        raise UserError(
            f"TensorFlow Serving {for_serving} lacks what the export uses: {', '.join(missing)}; export with that "
            "release of TensorFlow, or serve with a later one"
        )


def metadata_of(source: Source, inputs: Iterable[str]) -> dict[str, Any]:
    """Returns what an export says of its model, whose texts have the names `inputs`."""
    labels = source.task_spec["labels"]
    return {
        # the columns that it was trained on, which batch prediction looks for too
        **({"table": source.task_spec["table"]} if "table" in source.task_spec else {}),
        "kind": source.kind,
        "task": source.task_spec["task"],
        "inputs": list(inputs),
        "labels": None if labels is None else list(labels),
        "max_seq_length": source.task_spec["max_seq_length"],
        "do_lower_case": source.tokenizer.basic_tokenizer.do_lower_case,
        "version_of_official_bert": __version__,
    }


def _prove(source: Source, folder: str, eval_file: str | None) -> None:
    """Asks what was written the texts of a replay, and writes these beside it."""
    texts = replay.make(source.model, source.tokenizer, source.config, source.kind, source.task_spec, eval_file)
    replay.prove(texts, *plain_answers.answers(folder, texts.rows()))
    texts.write(folder)


def _prove_hub(source: Source, folder: str) -> None:
    """Asks the preprocessing for the ids of texts, and the encoder for the vectors of these."""
    length = tf_hub.default_length(source.config)
    spec = {**source.task_spec, "max_seq_length": length}
    texts = replay.make(source.model, source.tokenizer, source.config, ENCODER, spec)
    vectors = dataclasses.replace(texts, answers={"pooled_output": texts.answers["pooled_output"]})
    rows = [{"texts": text} for text in texts.texts["text"]]
    inputs, _ = plain_answers.answers(os.path.join(folder, tf_hub.PREPROCESS_FOLDER), rows)
    replay.prove(vectors, *plain_answers.answers(os.path.join(folder, tf_hub.ENCODER_FOLDER), inputs))
