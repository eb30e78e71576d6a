"""Hugging Face folders: config.json, the weights, vocab.txt or tokenizer.json, tokenizer_config.json.

Reading and writing them needs neither PyTorch nor transformers. Weights of transformers' TensorFlow classes
(TFBertModel and similar) are supported, too.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from official_bert.checkpoints import checksums
from official_bert.checkpoints.checkpoint import (
    POOLER,
    SEQUENCE_CLASSIFIER,
    Array,
    LoadedModel,
    LoadOverrides,
    find_part,
    make_placeholder_labels,
)
from official_bert.checkpoints.formats import hugging_face_files as hf
from official_bert.checkpoints.formats.format import CheckpointPath, Format, Framework, UnreadableWeightsError
from official_bert.checkpoints.formats.hugging_face_config import (
    CONFIG_FILE,
    config_json,
    read_config,
    read_kind,
    read_labels,
)
from official_bert.checkpoints.formats.hugging_face_tokenizer import read_tokenizer, tokenizer_files
from official_bert.checkpoints.model_files import write_model_files
from official_bert.checkpoints.tensors import TensorFile, read_weights, to_external
from official_bert.errors import UserError
from official_bert.utils import files
from official_bert.utils.counting import pluralize

NAME = "Hugging Face"


def detect(path: CheckpointPath) -> bool:
    """Returns whether a path holds a Hugging Face checkpoint.

    This includes folders that have only pickled weights, so that `read` can reject them with an explanation.
    """
    return hf.find_weights(path) is not None or (path.has(hf.PICKLED_FILE) and isinstance(path.bundle, UserError))


def read(path: CheckpointPath, overrides: LoadOverrides) -> LoadedModel:
    """Reads a Hugging Face folder. The path may also be the weight file in it.

    Raises:
        UserError: If a file or tensor is missing, unexpected or damaged, or the model differs from BERT as implemented
            here.
    """
    folder, name = path.folder, hf.find_weights(path)
    if name is None:
        raise UserError(
            f"{folder} has {hf.PICKLED_FILE} but not {hf.SAFETENSORS_FILE}; pickled weights can run any code and are "
            "not opened. If you trust them, turn them into safetensors where transformers and torch are installed: "
            "AutoModelForPreTraining.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER, safe_serialization=True)"
        )
    checksums.check_files(folder)
    weights_file = os.path.join(folder, name)
    values = files.read_json_object(os.path.join(folder, CONFIG_FILE))
    source, naming = hf.open_weights(weights_file)
    config = read_config(values, os.path.join(folder, CONFIG_FILE))
    described = read_tokenizer(folder, config, overrides, values.get("tokenizer_class"))
    _check_tied(source)
    classes = values.get("architectures") or []
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise UserError(f"{folder}/{CONFIG_FILE} has architectures {classes!r}; expected a list of names of classes")
    described_heads = {part for name_of_class in classes for part in hf.HEADS.get(name_of_class, ())}
    # If no class is named, assume the most common.
    other_classifiers = hf.CLASSIFIERS - ((hf.CLASSIFIERS & described_heads) or {SEQUENCE_CLASSIFIER})

    def get_name(path: str) -> str | None:
        return None if find_part(path) in other_classifiers else naming.get_name(path)

    model = read_weights(described, source, dataclasses.replace(naming, get_name=get_name), overrides)
    weights, notes = model.weights, model.notes
    for name_of_class in classes:
        for part in hf.HEADS.get(name_of_class, ()):
            if part not in model.parts:
                raise UserError(f"{folder}/{CONFIG_FILE} describes a {name_of_class}, but {weights_file} has no {part}")
    kernel = weights.get("sequence_classifier/kernel", weights.get("token_classifier/kernel"))
    labels = None if kernel is None else read_labels(values, kernel.shape[1], folder)
    kind = read_kind(values, folder) if "sequence_classifier/kernel" in weights else None
    rate = values.get("classifier_dropout")
    if kernel is not None and rate not in (None, config.hidden_dropout_prob):
        notes += (f"the classifier's own dropout rate, {rate}, has no place in our configuration and was not kept",)
    return dataclasses.replace(model, labels=labels, kind=kind, notes=notes)


def _check_tied(source: TensorFile) -> None:
    """Raises a UserError if the masked-LM output layer has its own weights. Our model shares the word embeddings."""
    for copy, original in hf.TIED.items():
        if copy in source.shapes and original in source.shapes:
            a, b = source.read(copy), source.read(original)
            if a.shape != b.shape or a.tobytes() != b.tobytes():
                raise UserError(
                    f"{copy} in {source.path} differs from {original}; only models that share it can be read. To read "
                    "its encoder, remove the masked-LM head with transformers: "
                    "AutoModel.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
                )


def write(checkpoint: LoadedModel, folder: str) -> LoadedModel:
    """Writes a folder that transformers can load, and returns the model that was written.

    config.json names the transformers class that has the same parts, such as BertForPreTraining.

    Raises:
        UserError: If no transformers class has the checkpoint's parts.
    """
    from safetensors.numpy import save_file

    name_of_class = hf.find_class(checkpoint.parts)
    if name_of_class is None:
        raise UserError(f"no model of transformers has {', '.join(checkpoint.parts)} together")
    tensors = to_external(checkpoint.weights, checkpoint.config, hf.PYTORCH, NAME)
    if checkpoint.labels == make_placeholder_labels(len(checkpoint.labels or ())):  # Written for classes without names.
        checkpoint = dataclasses.replace(checkpoint, labels=None)
    if name_of_class == "BertModel":
        tensors = {name.removeprefix("bert."): value for name, value in tensors.items()}
    contents = {CONFIG_FILE: config_json(checkpoint, name_of_class), **tokenizer_files(checkpoint)}
    write_model_files(folder, contents, tensors)
    with files.write_atomically(os.path.join(folder, hf.SAFETENSORS_FILE)) as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})
        files.reset_permissions(temporary)
    return checkpoint


def transformers_outputs(checkpoint: LoadedModel, folder: str, features: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the outputs that transformers computes from the model in a folder (see `Framework.outputs`)."""
    import torch
    import transformers

    if not any(files.exists(os.path.join(folder, hf.SAFETENSORS_FILE + suffix)) for suffix in ("", hf.INDEX)):
        raise UnreadableWeightsError(f"transformers reads only {hf.SAFETENSORS_FILE}")
    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()
    name_of_class = hf.find_class(checkpoint.parts) or "BertModel"
    options: dict[str, Any] = {"attn_implementation": "eager", "dtype": torch.float32, "local_files_only": True}
    if name_of_class == "BertModel" and POOLER not in checkpoint.parts:
        options["add_pooling_layer"] = False
    model, loading = getattr(transformers, name_of_class).from_pretrained(folder, output_loading_info=True, **options)
    if missing := sorted(loading["missing_keys"]):
        raise UnreadableWeightsError(
            f"transformers does not find {pluralize(len(missing), 'tensor')}, such as {missing[0]}"
        )
    model.eval()
    names = {"input_ids": "input_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}
    arguments = {theirs: torch.tensor(features[ours], dtype=torch.long) for theirs, ours in names.items()}
    if name_of_class == "BertForMultipleChoice":  # takes [B, choices, S]
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


def encode_with_transformers(folder: str, texts: Sequence[str]) -> list[list[int]]:
    """Returns the token ids of texts from the transformers tokenizer in a folder (see `Framework.encode`)."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]


FORMAT = Format(
    name="hugging_face",
    title=NAME,
    detect=detect,
    read=read,
    write=write,
    holds_config=True,
    framework=Framework("transformers", transformers_outputs, encode_with_transformers),
)
