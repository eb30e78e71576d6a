"""Opens the model that fine-tuning starts from (--init), and selects which of its weights to use."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import keras

from official_bert.checkpoints.checkpoint import CLASSIFIER_BIASES, ENCODER, POOLER, Array, LoadedModel, LoadOverrides
from official_bert.checkpoints.loading import assign_weights, open_model
from official_bert.checkpoints.tensors import get_part_shapes
from official_bert.checkpoints.vocabulary import FoundTokenizer, resolve_tokenizer
from official_bert.errors import UserError
from official_bert.kinds.class_labels import UNKNOWN_LABELS
from official_bert.kinds.spec import KindSpec
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.head_input import HeadInput
from official_bert.utils.counting import pluralize

NO_POOLER = "the checkpoint has no pooler; its weights are random"


def read_initial_model(source: str | BertConfig, overrides: LoadOverrides | None = None) -> LoadedModel:
    """Returns the model that fine-tuning starts from. It always has a vocabulary, but may have no weights.

    Args:
        source: A path or name for `open_model`. For random weights, a BertConfig or the path of a bert_config.json.
        overrides: The user's vocabulary, casing and configuration, for a source without them.

    Raises:
        UserError: If a file is missing or damaged, or files or arguments contradict each other.
    """
    overrides = overrides or LoadOverrides()
    if isinstance(source, BertConfig) or source.endswith(".json"):
        config = source if isinstance(source, BertConfig) else BertConfig.from_json_file(source)
        where = "a BertConfig" if isinstance(source, BertConfig) else source
        if overrides.vocab_file is None:
            raise UserError(f"{where} contains no vocabulary; pass --vocab_file")
        untrained = resolve_tokenizer(FoundTokenizer(where, {}, None, ""), overrides, config)
        return untrained.add_notes("the weights are random")
    checkpoint = open_model(source, overrides)
    checkpoint.require_vocab()
    if checkpoint.task_spec is None and POOLER not in checkpoint.parts:
        return checkpoint.add_notes(NO_POOLER)
    return checkpoint


def describe_initial_model(initial: LoadedModel, path: str, has_head: bool) -> str:
    """Returns a line that tells the user what was loaded.

    Args:
        initial: The model.
        path: The value of --init.
        has_head: Whether the head of the loaded model is used. If not, the task gets a new head.
    """
    config = initial.config
    return (
        f"loaded {path}: {pluralize(config.num_hidden_layers, 'layer')} of {config.hidden_size}, "
        f"{initial.casing.kind} vocabulary of {len(initial.require_vocab().splitlines()):,} pieces; "
        f"{'its head is used' if has_head else 'the head is new'}"
    )


def list_origin_notes(initial: LoadedModel, has_head: bool) -> tuple[str, ...]:
    """Returns a note if the initial model is fine-tuned, but only its encoder is used.

    Args:
        initial: The initial model.
        has_head: Whether its head is used, too.
    """
    if initial.task_spec is None or has_head:
        return ()
    task, kind = initial.task_spec["task"], initial.task_spec["kind"].replace("_", " ")
    return (f"the encoder comes from a model fine-tuned on {task}; its head, for {kind}, is not used",)


def build_initial_encoder(initial: LoadedModel, seed: int, dtype: Any) -> keras.Model:
    """Builds the encoder of a loaded model. Weights that the model lacks are random.

    Under a distribution strategy, call it within the strategy's scope.
    """
    encoder = build_encoder(initial.config, seed=seed, dtype=dtype)
    assign_weights(encoder, initial.weights, allow_missing=True)
    return encoder


def select_head_weights(initial: LoadedModel, spec: KindSpec) -> dict[str, Array] | None:
    """Returns a fine-tuned model's weights of encoder and head, by variable path, if the task can use its head.

    Returns None if the task needs a new head. If the model has the same classes in another order, its weights are
    reordered.

    Args:
        initial: The initial model.
        spec: The kind of task to train, with its labels and settings.
    """
    if (task_spec := initial.task_spec) is None or not _has_same_head(task_spec, spec):
        return None
    return _reorder_classes(initial.weights, task_spec["labels"], spec.labels) if spec.labels else initial.weights


def _has_same_head(task_spec: Mapping[str, Any], spec: KindSpec) -> bool:
    """Returns whether a task.json describes the same kind, classes (in any order), number of choices and head input."""
    own = spec.task_spec(None, task_spec["max_seq_length"])
    same_labels = sorted(task_spec["labels"] or ()) == sorted(own["labels"] or ())
    same_input = HeadInput.from_dict(task_spec) == spec.head_input
    return same_labels and same_input and all(task_spec[name] == own[name] for name in ("kind", "num_choices"))


def select_checkpoint_weights(
    initial: LoadedModel, spec: KindSpec, paths: Collection[str]
) -> tuple[Mapping[str, Array], str | None]:
    """Selects the weights that training starts from, for an initial model that was not fine-tuned with the same head.

    The checkpoint's classifier, if any, is used if it has the same classes, in any order, and the same kind of task.
    Classes without names are assumed to be in the order of `spec.labels`.

    Args:
        initial: The checkpoint.
        spec: The kind of task to train, with its labels and settings.
        paths: The variable paths of the model to train.

    Returns:
        The weights by variable path, and a note about the classifier or None.
    """
    weights, own = initial.weights, initial.labels
    if initial.task_spec is not None:
        encoder = {name for part in (ENCODER, POOLER) for name in get_part_shapes(part, initial.config)}
        return {name: value for name, value in weights.items() if name in encoder}, None
    bias = next((name for name in CLASSIFIER_BIASES if name in weights and name in paths), None)
    if bias is None:
        return weights, None
    number, labels = len(weights[bias]), spec.labels
    described = f"the checkpoint's classifier has {number} class{'' if number == 1 else 'es'}"
    described += f" ({', '.join(own)})" if own else ""
    if initial.kind not in (None, spec.kind):
        problem = f"it is for {str(initial.kind).replace('_', ' ')}"
    elif labels == UNKNOWN_LABELS:
        problem = "the model has no labels yet (pass labels=[...] in the order of these classes)"
    elif number != len(labels or "1") or (own and labels and sorted(own) != sorted(labels)):
        problem = f"the model has {', '.join(labels)}" if labels else "the model predicts one number"
    elif own and labels:
        return _reorder_classes(weights, own, labels), None
    else:
        note = (
            f"{described} without names, which are assumed to be {', '.join(labels)} in this order" if labels else None
        )
        return weights, note
    layer = bias.split("/")[0]
    other_weights = {name: value for name, value in weights.items() if not name.startswith(f"{layer}/")}
    return other_weights, f"{described}, but {problem}; the classifier is not used"


def _reorder_classes(weights: Mapping[str, Array], before: Sequence[str], after: Sequence[str]) -> dict[str, Array]:
    """Returns the weights with the classifier's classes moved from the order `before` to the order `after`."""
    order = [before.index(label) for label in after]
    layers = {name.split("/")[0] for name in CLASSIFIER_BIASES}
    return {name: value[..., order] if name.split("/")[0] in layers else value for name, value in weights.items()}
