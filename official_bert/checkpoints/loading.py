"""Opens a checkpoint of any format, by path or by name, and builds Keras models from it."""

import dataclasses
import glob
import os
import sys
from typing import Any, NamedTuple

import keras

from official_bert.checkpoints import bundle, named_models
from official_bert.checkpoints.checkpoint import (
    MASKED_LM,
    POOLER,
    PRETRAINING,
    LoadedModel,
    LoadOverrides,
    ModelSource,
)
from official_bert.checkpoints.formats import hugging_face_files, keras_hub
from official_bert.checkpoints.formats.all_formats import FORMATS
from official_bert.checkpoints.formats.format import CheckpointPath, Format
from official_bert.checkpoints.tensors import assign_weights as assign_weights
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils import files

_EXPORT_FILE = os.path.join("assets.extra", "official_bert.json")  # in each version of an export


class ModelAndTokenizer(NamedTuple):
    """A Keras model with its configuration and tokenizer."""

    model: keras.Model
    config: BertConfig
    tokenizer: FastTokenizer


def open_model(path_or_name: str, overrides: LoadOverrides | None = None) -> LoadedModel:
    """Reads a checkpoint of any format into memory.

    Args:
        path_or_name: A folder, one of the checkpoint's files, a TensorFlow checkpoint's path without .index, or a name,
            such as bert-base-uncased, hf://owner/name or google://name.
        overrides: The user's settings. If None, nothing is overridden.

    Raises:
        UserError: If the format is unknown, a file or tensor is missing, unexpected or damaged, or files contradict
            each other or the user's settings.
    """
    path = named_models.get_local_folder(path_or_name)
    overrides = overrides or LoadOverrides()
    candidate = CheckpointPath(path)
    found = _detect_format(candidate)
    if overrides.bert_config_file and found.holds_config:
        raise UserError(f"--bert_config_file is for checkpoints without a configuration; {path} has its own")
    if overrides.optimizer and not found.holds_optimizer:
        raise UserError(f"{found.title} checkpoints contain no optimizer state; remove --optimizer")
    return dataclasses.replace(
        found.read(candidate, overrides), source=ModelSource(str(path_or_name), path, found.name)
    )


def _detect_format(candidate: CheckpointPath) -> Format:
    """Returns the format of the checkpoint at a path.

    Raises:
        UserError: If no format recognizes the path.
    """
    path = candidate.path
    if any(files.glob(os.path.join(glob.escape(path), *folder, _EXPORT_FILE)) for folder in ((), ("[0-9]*",))):
        raise UserError(f"{path} is an export, for predict and serve. Pass the folder of the model it was made from.")
    for each in FORMATS.values():
        if each.detect(candidate):
            return each
    if path.endswith(".keras") and files.exists(path):
        raise UserError(
            f"{path} is a .keras file; load it with from_checkpoint of TextClassifier or a similar class, whose "
            "save_checkpoint(FOLDER) writes a folder for this command"
        )
    source = candidate.bundle
    if not isinstance(source, UserError):
        raise UserError(
            f"{source.path} holds {len(source.shapes)} tensors, but no word embeddings under a name of Google's, of "
            "model garden's or of ours"
        )
    if files.exists(path) and not bundle.is_bundle(path):
        raise UserError(
            f"{path} holds no checkpoint of a known format; expected a folder with *.index and *.data files, "
            f"{hugging_face_files.SAFETENSORS_FILE} or {keras_hub.MODEL_WEIGHTS_FILE}"
        ) from source
    raise named_models.explain_unknown_name(path) or source


def load(
    path: str,
    vocab_file: str | None = None,
    do_lower_case: bool | None = None,
    dtype: Any = "float32",
    strip_accents: bool | None = None,
) -> ModelAndTokenizer:
    """Loads a trained encoder with its configuration and tokenizer from a checkpoint of any format.

    Within a distribution strategy's scope the encoder is built for that strategy.

    Args:
        path: A folder or a file of a checkpoint of this library, Google's TF1, Hugging Face, keras-hub, model garden or
            TensorFlow Hub, or a name: hf://owner/name (with @revision), google://uncased_L-12_H-768_A-12.
        vocab_file: A vocab.txt, for a folder without one.
        do_lower_case: Whether the vocabulary is uncased, for a folder that does not state it.
        dtype: A Keras dtype policy for the encoder's layers.
        strip_accents: Whether accents are deleted in lower-cased texts, for a folder that does not state it. Defaults
            to True.

    Returns:
        A tuple with the names model (the encoder, as build_encoder returns it, without pooled_output if the checkpoint
        has no pooler), config and tokenizer.

    Raises:
        UserError: If a file or tensor is missing, unexpected or damaged, or files contradict each other.
    """
    loaded = open_model(
        path, LoadOverrides(vocab_file=vocab_file, do_lower_case=do_lower_case, strip_accents=strip_accents)
    )
    tokenizer = loaded.tokenizer
    for note in loaded.notes:
        print(f"note: {note}", flush=True)
    return ModelAndTokenizer(build_loaded_encoder(loaded, dtype), loaded.config, tokenizer)


def build_loaded_encoder(loaded: LoadedModel, dtype: Any = "float32") -> keras.Model:
    """Builds the Keras encoder of a loaded model and assigns its weights.

    The encoder has no pooled_output if the checkpoint has no pooler.

    Raises:
        UserError: If the model is fine-tuned and its head does not read the output of the encoder's last block.
    """
    encoder = build_encoder(loaded.config, dtype=dtype)
    if POOLER not in loaded.parts:  # its output would be random
        encoder = keras.Model(encoder.input, {"sequence_output": encoder.output["sequence_output"]}, name="encoder")
    absent = next((variable.path for variable in encoder.variables if variable.path not in loaded.weights), None)
    if absent and loaded.task_spec:
        raise UserError(
            f"{loaded.source.name} has no {absent}: its head, {loaded.task_spec.get('head')}, does not read "
            "the last block, which was therefore not trained. Pass the checkpoint that fine-tuning started from."
        )
    assign_weights(encoder, loaded.weights)
    return encoder


def load_pretraining_model(folder: str) -> ModelAndTokenizer:
    """Loads a model with its pre-training heads (masked LM and next sentence), its configuration and tokenizer.

    Args:
        folder: The folder of a run, whose newest complete checkpoint is read, or a checkpoint of any format with a
            masked-LM head.

    Returns:
        A tuple with the names model (without next_sentence_logits if the checkpoint has no pooler or no next-sentence
        head), config and tokenizer.

    Raises:
        UserError: If a file or the masked-LM head is missing, or files contradict each other.
    """
    loaded = open_model(folder)
    tokenizer = loaded.tokenizer
    for note in loaded.notes:
        print(f"note: {note}", file=sys.stderr, flush=True)  # The output may be JSON.
    if MASKED_LM not in loaded.parts:
        raise UserError(f"{folder} has no {MASKED_LM}. Pass a pre-trained model, in any format.")
    model = build_pretraining_model(loaded.config)
    if not set(loaded.parts) >= PRETRAINING:  # The output of the missing head would be random.
        model = keras.Model(model.input, {"masked_lm_logits": model.output["masked_lm_logits"]}, name=model.name)
    assign_weights(model, loaded.weights)
    return ModelAndTokenizer(model, loaded.config, tokenizer)
