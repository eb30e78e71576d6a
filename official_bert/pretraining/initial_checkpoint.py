"""Compares --init_checkpoint with the run, and assigns its weights."""

from collections.abc import Iterable, Sequence

import keras

from official_bert.checkpoints.checkpoint import ENCODER, PARTS, PRETRAINING, LoadedModel, find_part
from official_bert.checkpoints.run_checkpoints import get_stored_name
from official_bert.checkpoints.tensors import allow_hint, assign_weights, compare_weights, is_allowed
from official_bert.checkpoints.vocabulary import find_vocabulary_difference
from official_bert.data import manifest
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.pretraining.options import PretrainingOptions
from official_bert.tokenization.casing import Casing
from official_bert.utils import files


def check_initial_checkpoint(
    initial: LoadedModel,
    options: PretrainingOptions,
    config: BertConfig,
    manifests: Iterable[manifest.Manifest],
    casing: Casing | None,
) -> Casing | None:
    """Compares --init_checkpoint with the run.

    A different activation or LayerNorm epsilon only causes a warning.

    Args:
        initial: The opened checkpoint.
        options: The options of the run.
        config: The run's configuration.
        manifests: The manifests of the run's records.
        casing: The casing of the run's vocabulary, or None if unknown.

    Returns:
        `casing`, or the checkpoint's casing if `casing` is None.

    Raises:
        UserError: If the checkpoint has other attention heads, another vocabulary or another casing.
    """
    name = initial.source.name
    if config.num_attention_heads != initial.config.num_attention_heads:
        raise UserError(
            f"{options.bert_config_file} has num_attention_heads {config.num_attention_heads}, but the model of "
            f"--init_checkpoint has {initial.config.num_attention_heads}. Pass the configuration of that model."
        )
    for field in ("hidden_act", "layer_norm_eps"):
        value, initial_value = getattr(config, field), getattr(initial.config, field)
        if value != initial_value:
            print(
                f"warning: {options.bert_config_file} has {field} {value}, but the model of --init_checkpoint has "
                f"{initial_value}"
            )
    if initial.vocab is not None:
        remedy = "Pass records that were made with the vocabulary of --init_checkpoint"
        if options.vocab_file:
            difference = find_vocabulary_difference(initial.vocab, files.read_text(options.vocab_file))
            if difference:
                raise UserError(
                    f"{options.vocab_file} is not the vocabulary of --init_checkpoint, {name} ({difference}). {remedy}."
                )
        elif any(each.source["vocabulary"] != manifest.hash_vocabulary(initial.vocab) for each in manifests):
            raise UserError(
                f"The vocabulary of the records is not the vocabulary of --init_checkpoint, {name} (the hash in the "
                f"records' manifest differs). {remedy}, or pass the vocabulary of the records as --vocab_file to see "
                "the first difference."
            )
    if not initial.states_casing:
        return casing
    if casing and casing != initial.casing:
        raise UserError(
            f"The run's texts are {casing.texts}, but --init_checkpoint, {name}, was trained on texts that are "
            f"{initial.casing.texts}. Pass records of that kind."
        )
    return initial.casing


def assign_initial_weights(model: keras.Model, initial: LoadedModel, allow: Sequence[str] = ()) -> list[str]:
    """Assigns the weights of a checkpoint to a pre-training model.

    Pre-training heads that the checkpoint lacks keep their initial weights. Task heads in the checkpoint are ignored.

    Args:
        model: The pre-training model.
        initial: The checkpoint.
        allow: Regular expressions for names of other weights that may be missing, unused or have another shape.

    Returns:
        Lines for the terminal: one for each tensor, a summary, and a list of the heads that the checkpoint lacks.

    Raises:
        UserError: If other weights are missing, unused or have another shape. In this case nothing is assigned.
    """
    result = compare_weights(model, initial.weights)
    new_heads = [part for part in PARTS if part in PRETRAINING - {ENCODER} and part not in initial.parts]
    expected = {*PARTS} - PRETRAINING | {*new_heads}
    problems = result.missing | {name: f"{name} is unused" for name in result.unused}
    wrong = {
        name: each for name, each in problems.items() if find_part(name) not in expected and not is_allowed(name, allow)
    }
    if wrong:
        raise UserError(
            f"{initial.source.name} does not fit the model: {'; '.join(wrong.values())}{allow_hint([*wrong])}"
        )
    assign_weights(model, initial.weights, allow_missing=True)
    inventory = initial.inventory
    names = {path: name for name, path in inventory.loaded.items()} if inventory else {}
    num_others = sum(map(len, inventory.left_behind.values())) if inventory else 0
    lines = []
    for path in result.loaded:
        name = names.get(path, path)
        lines.append(f"  loaded   {path}" + (f" from {name}" if name not in (path, get_stored_name(path)) else ""))
    lines += [f"  missing  {problem}; it keeps its random values" for problem in result.missing.values()]
    lines += [f"  unused   {name}" for name in result.unused]
    lines.append(
        f"{len(result.loaded)} tensors loaded, {len(result.missing)} missing, {len(result.unused)} unused; "
        f"{num_others} other tensors in the file, such as the optimizer's state"
    )
    if new_heads:
        lines.append(f"the checkpoint has no {', no '.join(new_heads)}: new weights are used")
    return lines
