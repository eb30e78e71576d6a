"""Reads the trained model that an export is made from."""

import dataclasses
import functools
import os
from collections.abc import Iterable
from typing import Any

import keras

from official_bert.checkpoints.checkpoint import MASKED_LM
from official_bert.checkpoints.formats import finetuned
from official_bert.checkpoints.formats.hugging_face_tokenizer import format_tokenizer_json
from official_bert.checkpoints.loading import assign_weights, build_loaded_encoder, open_model
from official_bert.checkpoints.vocabulary import split_vocab
from official_bert.errors import UserError
from official_bert.inference import exports
from official_bert.kinds.all_kinds import SPECS, create_spec
from official_bert.kinds.names import ENCODER, FILL_MASK
from official_bert.kinds.spec import KindSpec
from official_bert.modeling.config import BertConfig
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils import files
from official_bert.version import __version__

_MIN_LENGTH = 8


@dataclasses.dataclass(frozen=True)
class ExportSource:
    """A trained model to export, and what describes it.

    Attributes:
        model: The Keras model: fine-tuned with a head, an encoder, or a masked LM (see GraphModel).
        config: The encoder's configuration.
        tokenizer: The model's tokenizer.
        vocab: The text of the vocab.txt.
        kind: The kind of task of a fine-tuned model, or ENCODER or FILL_MASK.
        task_spec: The contents of task.json. For a model without a head, only task (None), labels (None) and
            max_seq_length.
    """

    model: keras.Model
    config: BertConfig
    tokenizer: FastTokenizer
    vocab: str
    kind: str
    task_spec: dict[str, Any]

    @functools.cached_property
    def spec(self) -> KindSpec | None:
        """The specification of the kind of task, which decodes answers. None if the model was not fine-tuned."""
        return create_spec({**self.task_spec, "kind": self.kind}) if self.kind in SPECS else None

    def metadata(self, inputs: Iterable[str]) -> dict[str, Any]:
        """Returns the metadata to store with an export, whose text inputs have the names `inputs`."""
        labels = self.task_spec["labels"]
        return {
            # The columns that the model was trained on, which predict looks for too.
            **({"table": self.task_spec["table"]} if "table" in self.task_spec else {}),
            "kind": self.kind,
            "task": self.task_spec["task"],
            "inputs": list(inputs),
            "labels": None if labels is None else list(labels),
            "max_seq_length": self.task_spec["max_seq_length"],
            **self.tokenizer.casing.settings,
            "version_of_official_bert": __version__,
            "task_spec": {**self.task_spec, "kind": self.kind},
        }

    def write_tokenizer(self, folder: str) -> None:
        """Writes vocab.txt and a tokenizer.json for Hugging Face's tokenizers into the folder of an export."""
        files.write_text(os.path.join(folder, exports.VOCAB_FILE), self.vocab)
        tokens, casing = split_vocab(self.vocab), self.tokenizer.casing
        if len(set(tokens)) == len(tokens):  # tokenizer.json cannot contain equal tokens.
            # Not special, because Hugging Face's option encode_special_tokens, which treats a [SEP] in a text as
            # ordinary text, would do the same to special added tokens.
            added = tuple(token._replace(special=False) for token in casing.added_tokens)
            tokenizer = format_tokenizer_json(tokens, casing._replace(added_tokens=added))
            files.write_text(os.path.join(folder, exports.TOKENIZER_FILE), tokenizer)


def read_source(folder: str, encoder: bool = False, max_seq_length: int | None = None) -> ExportSource:
    """Reads a fine-tuned model, a masked LM or an encoder, to be exported.

    Args:
        folder: A path or name for `open_model`.
        encoder: Whether to export only the encoder, without the head.
        max_seq_length: The maximum sequence length. Defaults to the length used in fine-tuning, or else the model's
            maximum.

    Raises:
        UserError: If the model does not exist or lacks a vocabulary, or `max_seq_length` is out of range.
    """
    loaded = open_model(folder)
    config, tokenizer = loaded.config, loaded.tokenizer
    if loaded.task_spec is None and not encoder:
        loaded = finetuned.add_task_spec(loaded) or loaded
    for note in loaded.notes:
        print(f"note: {note}", flush=True)
    task_spec = dict(loaded.task_spec or {"max_seq_length": config.max_position_embeddings})
    if loaded.task_spec is not None and not encoder:
        model, kind = finetuned.build_model(loaded), task_spec["kind"]
    else:
        task_spec = {"task": None, "labels": None, "max_seq_length": task_spec["max_seq_length"]}
        if encoder or MASKED_LM not in loaded.parts or not config.predicts_masked_tokens:
            model, kind = build_loaded_encoder(loaded), ENCODER
        else:
            pretraining_model = build_pretraining_model(config)
            model = keras.Model(pretraining_model.input, pretraining_model.output["masked_lm_logits"], name="masked_lm")
            kind = FILL_MASK
            assign_weights(model, loaded.weights)
    if max_seq_length is not None:
        task_spec["max_seq_length"] = max_seq_length
    if not _MIN_LENGTH <= task_spec["max_seq_length"] <= config.max_position_embeddings:
        raise UserError(
            f"max_seq_length is {task_spec['max_seq_length']}; expected {_MIN_LENGTH} to "
            f"{config.max_position_embeddings}, the model's maximum"
        )
    return ExportSource(model, config, tokenizer, loaded.require_vocab(), kind, task_spec)
