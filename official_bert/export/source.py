"""The trained model that an export is made of, from any folder that holds one."""

import dataclasses
from typing import Any

import keras

from official_bert.checkpoints import finetuned
from official_bert.checkpoints.checkpoint import MASKED_LM
from official_bert.checkpoints.formats import fine_tuned
from official_bert.checkpoints.loading import assign_weights, build_loaded_encoder, open_model
from official_bert.errors import UserError
from official_bert.kinds.names import ENCODER, FILL_MASK
from official_bert.modeling.config import BertConfig
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.tokenization.exact import FullTokenizer

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
        folder: A path or name that `open_model` takes.
        encoder: Whether to return the encoder, whatever the head.
        max_seq_length: The longest sequence. Defaults to that of fine-tuning or of the model.

    Raises:
        UserError: If there is no such model, it has no vocabulary, or the length does not fit.
    """
    loaded = open_model(folder)
    tokenizer = loaded.tokenizer
    if loaded.task is None and not encoder and fine_tuned.head_of(loaded):
        loaded = fine_tuned.with_task(loaded)
    for note in loaded.notes:
        print(f"note: {note}", flush=True)
    config, task = loaded.config, dict(loaded.task or {"max_seq_length": loaded.config.max_position_embeddings})
    if loaded.task is not None and not encoder:
        model, kind = finetuned.build_model(loaded), task["kind"]
    else:
        task = {"task": None, "labels": None, "max_seq_length": task["max_seq_length"]}
        if encoder or MASKED_LM not in loaded.parts or not config.predicts_masked_tokens:
            model, kind = build_loaded_encoder(loaded), ENCODER
        else:
            whole = build_pretraining_model(config)
            model, kind = keras.Model(whole.input, whole.output["masked_lm_logits"], name="masked_lm"), FILL_MASK
            assign_weights(model, loaded.weights)
    if max_seq_length is not None:
        task["max_seq_length"] = max_seq_length
    if not _LEAST_LENGTH <= task["max_seq_length"] <= config.max_position_embeddings:
        raise UserError(
            f"the longest sequence is {task['max_seq_length']} tokens; expected {_LEAST_LENGTH} to "
            f"{config.max_position_embeddings}, the positions of the model"
        )
    return Source(model, config, tokenizer, loaded.require_vocab(), kind, task)
