"""Creates Keras models from checkpoints."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from official_bert.checkpoints.checkpoint import POOLER, TASK_HEADS, LoadedModel, LoadOverrides
from official_bert.checkpoints.formats.finetuned import get_head_kind
from official_bert.checkpoints.loading import assign_weights
from official_bert.checkpoints.vocabulary import FoundTokenizer, resolve_tokenizer
from official_bert.finetuning.initial_model import (
    NO_POOLER,
    list_origin_notes,
    select_checkpoint_weights,
    select_head_weights,
)
from official_bert.utils.counting import pluralize


def create_model(model_class: Any, initial: LoadedModel, settings: dict[str, Any]) -> Any:
    """Creates a TextModel with the weights of a checkpoint, and prints which weights were loaded.

    Args:
        model_class: A subclass of TextModel.
        initial: The checkpoint. If it is a fine-tuned model of the same kind, its head and settings are used too.
        settings: Constructor arguments that the user passed.
    """
    task_spec = initial.task_spec if initial.task_spec and initial.task_spec["kind"] in model_class.kinds else None
    explicit = settings
    if task_spec is not None:
        settings = {"max_seq_length": task_spec["max_seq_length"], **model_class._get_settings(task_spec), **settings}
    elif initial.task_spec is None:
        kinds = {get_head_kind(initial, part) for part in initial.parts if part in TASK_HEADS}
        labels = {"labels": list(initial.labels)} if initial.labels and kinds & {*model_class.kinds} else {}
        settings = {**model_class._get_settings({"kind": initial.kind, **labels}), **settings}
    model = model_class(initial.config, initial.require_vocab(), do_lower_case=initial.casing, **settings)
    weights = select_head_weights(initial, model.spec)
    inherited = [name for name in ("labels", "multi_label") if name not in explicit and settings.get(name)]
    notes = (*initial.notes, *list_origin_notes(initial, has_head=weights is not None))
    notes += tuple(f"{name}={settings[name]} is taken from the checkpoint" for name in inherited)
    if weights is not None:
        assign_weights(model, weights)
        model._copy_decision_settings(initial.task_spec or {}, explicit)
        has_head = True
    else:
        paths = {variable.path for variable in model.variables}
        values, note_of_head = select_checkpoint_weights(initial, model.spec, paths)
        has_head = paths <= values.keys()
        model._assign_weights(values)
        notes += (note_of_head,) if note_of_head else ()
        if values and f"{POOLER}/kernel" in paths - values.keys() and NO_POOLER not in notes:
            notes += (NO_POOLER,)
    for note in notes:
        print(f"note: {note}")
    encoder = f"{pluralize(initial.config.num_hidden_layers, 'layer')} of {initial.config.hidden_size}"
    print(f"{model.name}: {encoder}, {model.count_params():,} parameters; {model._head_note(has_head)}")
    return model


def to_loaded_model(model: Any, path: str, overrides: LoadOverrides) -> LoadedModel:
    """Converts a TextModel that was loaded from a .keras file to a LoadedModel, the form of all other checkpoints.

    Args:
        model: The TextModel.
        path: Path of the file, for messages.
        overrides: The user's vocabulary and casing, if they differ from the file's.
    """
    found = FoundTokenizer(path, {path: model.vocab}, model.casing, path)
    task_spec: Mapping[str, Any] | None = model._task_spec() if model.kinds else None
    checkpoint = resolve_tokenizer(found, overrides, model.bert_config)
    checkpoint = dataclasses.replace(checkpoint, weights=model._weights(), task_spec=task_spec)
    return checkpoint.add_notes(f"using the encoder of a {type(model).__name__}")
