"""Hugging Face folders: config.json, model.safetensors, vocab.txt or tokenizer.json, tokenizer_config.json.

Read and written without PyTorch. Pickled weights are never opened: they can run any code.
"""

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from official_bert.checkpoints import checksums
from official_bert.checkpoints.checkpoint import PARTS, POOLER, SEQUENCE_CLASSIFIER, Array, Checkpoint, LoadOverrides
from official_bert.checkpoints.formats import hugging_face_names as hf
from official_bert.checkpoints.formats.format import CheckpointPath, Format, Framework
from official_bert.checkpoints.formats.hugging_face_config import (
    CONFIG_FILE,
    config_json,
    numbered_labels,
    read_config,
    read_kind,
    read_labels,
)
from official_bert.checkpoints.formats.hugging_face_tokenizer import read_tokenizer, tokenizer_files
from official_bert.checkpoints.tensors import Source, collect, take_inventory, to_external
from official_bert.errors import UserError
from official_bert.utils import files

NAME = "Hugging Face"
WEIGHTS_FILE = "model.safetensors"
PICKLED_FILE = "pytorch_model.bin"


def detect(path: CheckpointPath) -> bool:
    """Whether a path holds a folder of Hugging Face's; one with pickled weights alone too, which `read` refuses."""
    return path.has(WEIGHTS_FILE) or (path.has(PICKLED_FILE) and isinstance(path.bundle, UserError))


def read(path: str, overrides: LoadOverrides) -> Checkpoint:
    """Reads a folder, or the one of a model.safetensors.

    Raises:
        UserError: something is missing, left over, damaged, or nothing that our model computes.
    """
    folder = os.path.dirname(path) if os.path.basename(path) in (WEIGHTS_FILE, PICKLED_FILE) else path
    weights_file = os.path.join(folder, WEIGHTS_FILE)
    if not files.exists(weights_file):
        raise UserError(
            f"{folder} has {PICKLED_FILE} but not {WEIGHTS_FILE}; pickled weights can run any code and are not opened. "
            "If you trust them, turn them into safetensors where transformers and torch are installed: "
            "AutoModelForPreTraining.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER, safe_serialization=True)"
        )
    if overrides.optimizer:
        raise UserError(f"the {NAME} format holds no optimizer state; convert without --optimizer")
    checksums.check_files(folder)
    values = files.read_json_object(os.path.join(folder, CONFIG_FILE))
    config = read_config(values, os.path.join(folder, CONFIG_FILE))
    vocab, do_lower_case, notes = read_tokenizer(folder, config, overrides)
    raw = checksums.with_checks(open_safetensors(weights_file), folder)
    source = _with_new_names(raw)
    _check_tied(source)
    classes = values.get("architectures") or []
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise UserError(f"{folder}/{CONFIG_FILE} has architectures {classes!r}; expected a list of names of classes")
    other_classifiers = {
        name for part, name_of_class in hf.CLASSIFIERS.items() for name in PARTS[part] if name_of_class not in classes
    }
    if len(other_classifiers) == 2 * len(hf.CLASSIFIERS):  # none is named: the commonest
        other_classifiers -= set(PARTS[SEQUENCE_CLASSIFIER])
    names = {ours: theirs for ours, theirs in hf.NAMES.items() if ours not in other_classifiers}
    weights, loaded = collect(source, config, names, hf.layout, hf.IGNORED)
    inventory = take_inventory(source, loaded, hf.IGNORED)
    for name_of_class in classes:
        for part in hf.HEADS.get(name_of_class, ()):
            if next(iter(PARTS[part])) not in weights:
                raise UserError(f"{folder}/{CONFIG_FILE} describes a {name_of_class}, but {weights_file} has no {part}")
    kernel = weights.get("sequence_classifier/kernel", weights.get("token_classifier/kernel"))
    labels = None if kernel is None else read_labels(values, kernel.shape[1], folder)
    kind = read_kind(values, folder) if "sequence_classifier/kernel" in weights else None
    rate = values.get("classifier_dropout")
    if kernel is not None and rate not in (None, config.hidden_dropout_prob):
        notes += (f"the classifier's own dropout rate, {rate}, has no place in our configuration and was not kept",)
    return Checkpoint(config, weights, vocab, do_lower_case, labels=labels, kind=kind, notes=notes, inventory=inventory)


def open_safetensors(path: str) -> Source:
    """Opens a .safetensors file; a damaged one raises a UserError."""
    import safetensors

    if files.is_remote(path):
        raise UserError(f"{path} is on another file system; copy the folder to this machine first")
    files.check_regular(path)
    try:
        opened: Any = safetensors.safe_open(path, framework="numpy")
        shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged: {error}; restore the file from a copy") from error

    def read(name: str) -> Array:
        try:
            value: Array = opened.get_tensor(name)
        except (safetensors.SafetensorError, OSError, TypeError, ValueError, AttributeError) as error:
            kind = opened.get_slice(name).get_dtype()  # NumPy has no float8, for one
            raise UserError(f"{name} in {path}, of type {kind}, cannot be read: {error}") from error
        return value

    return Source(path, shapes, read)


def _with_new_names(source: Source) -> Source:
    """The source under today's names: old files say gamma and beta, a model saved alone lacks the prefix."""
    names: dict[str, str] = {}
    for name in source.shapes:
        new = re.sub(r"^(embeddings|encoder|pooler)\.", r"bert.\1.", name)
        new = new.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if new in names:
            raise UserError(f"{source.path} holds {names[new]} and {name}, which are one tensor; keep one of them")
        names[new] = name
    shapes = {new: source.shapes[name] for new, name in names.items()}
    return Source(source.path, shapes, lambda name: source.read(names[name]))


def _check_tied(source: Source) -> None:
    """Raises a UserError if the output layer has weights of its own: ours shares the word embeddings."""
    for copy, original in hf.TIED.items():
        if copy in source.shapes and original in source.shapes:
            a, b = source.read(copy), source.read(original)
            if a.shape != b.shape or a.tobytes() != b.tobytes():
                raise UserError(
                    f"{copy} in {source.path} differs from {original}; only models that share it can be read"
                )


def write(checkpoint: Checkpoint, folder: str) -> Checkpoint:
    """Writes a folder that transformers loads, with the class that has the checkpoint's parts; returns the checkpoint.

    Raises:
        UserError: no class of theirs has these parts.
    """
    from safetensors.numpy import save_file

    name_of_class = hf.CLASSES.get(frozenset(checkpoint.parts))
    if name_of_class is None:
        raise UserError(f"no model of transformers has {', '.join(checkpoint.parts)} together")
    tensors = to_external(checkpoint.weights, checkpoint.config, hf.NAMES, hf.layout, NAME)
    if checkpoint.labels == tuple(numbered_labels(len(checkpoint.labels or ())).values()):  # stands there for no names
        checkpoint = dataclasses.replace(checkpoint, labels=None)
    if name_of_class == "BertModel":
        tensors = {name.removeprefix("bert."): value for name, value in tensors.items()}
    contents = {CONFIG_FILE: config_json(checkpoint, name_of_class), **tokenizer_files(checkpoint)}
    for name, content in contents.items():
        files.write_text(os.path.join(folder, name), content)
    with files.written_whole(os.path.join(folder, WEIGHTS_FILE)) as beside:
        save_file(tensors, beside, metadata={"format": "pt"})
    checksums.write(folder, list(contents), tensors)
    return checkpoint


def transformers_outputs(checkpoint: Checkpoint, folder: str, features: Mapping[str, Array]) -> dict[str, Array]:
    """Returns what transformers computes from a folder; see `Framework.outputs`."""
    import torch
    import transformers

    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()
    name_of_class = hf.CLASSES.get(frozenset(checkpoint.parts), "BertModel")
    options: dict[str, Any] = {"attn_implementation": "eager", "dtype": torch.float32, "local_files_only": True}
    if name_of_class == "BertModel" and POOLER not in checkpoint.parts:
        options["add_pooling_layer"] = False
    model = getattr(transformers, name_of_class).from_pretrained(folder, **options).eval()
    names = {"input_ids": "input_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}
    arguments = {theirs: torch.tensor(features[ours], dtype=torch.long) for theirs, ours in names.items()}
    choices = name_of_class == "BertForMultipleChoice"  # takes [B, choices, S]
    if choices:
        arguments = {name: value[:, None] for name, value in arguments.items()}
    with torch.no_grad():
        result = model(**arguments, output_hidden_states=True)
    outputs = {f"hidden_{number}": layer.numpy() for number, layer in enumerate(result["hidden_states"][1:])}
    names = {
        "pooler_output": "pooled_output",
        "prediction_logits": "masked_lm_logits",
        "seq_relationship_logits": "next_sentence_logits",
        "logits": {"BertForMaskedLM": "masked_lm_logits", "BertForNextSentencePrediction": "next_sentence_logits"}.get(
            name_of_class, "logits"
        ),
    }
    for theirs, ours in names.items():
        if result.get(theirs) is not None:
            outputs[ours] = result[theirs].numpy()
    if "start_logits" in result:
        outputs["logits"] = np.stack([result["start_logits"].numpy(), result["end_logits"].numpy()], axis=-1)
    return outputs


FORMAT = Format(
    name="hugging_face",
    title=NAME,
    detect=detect,
    read=read,
    write=write,
    holds_config=True,
    local_only=True,
    framework=Framework("transformers", ("transformers", "torch"), transformers_outputs),
)
