"""The trained model that an export is made of, from any folder that holds one."""

import dataclasses
import os
from typing import Any

import keras

from official_bert.checkpoints import finetuned, loading, named_models, reading
from official_bert.checkpoints.checkpoint import MASKED_LM, VOCAB_FILE, Checkpoint
from official_bert.checkpoints.formats import fine_tuned
from official_bert.errors import UserError
from official_bert.export.text_models import ENCODER, FILL_MASK
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.tokenization.exact import FullTokenizer
from official_bert.utils import files

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
        no_masked_lm = MASKED_LM not in checkpoint.parts or not checkpoint.config.predicts_masked_tokens
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
    tokenizer = kept.tokenizer(f"the vocabulary of {folder}")
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
