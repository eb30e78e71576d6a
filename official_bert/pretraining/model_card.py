"""Writes the model card: a description of a pre-trained model and its training, in Markdown."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from official_bert.data.sentence_objectives import NONE, get_objective
from official_bert.modeling.config import BertConfig
from official_bert.pretraining import summary
from official_bert.pretraining.run_metadata import CHANGE_DESCRIPTIONS
from official_bert.pretraining.summary import LENGTH, Logs
from official_bert.runs.run_file import describe_changes
from official_bert.runs.training_log import EVAL, NOTICES, TRAIN, read_log
from official_bert.utils import files, markdown
from official_bert.utils.counting import pluralize

CARD_FILE = "MODEL_CARD.md"
_ORIGINAL_SEQUENCES = 256_000_000  # 1,000,000 steps of 256 sequences (the paper, section A.2)
_MOST_NOTICES = 50  # the log has all


def write_model_card(
    folder: str, metadata: Mapping[str, Any], sections: Mapping[str, markdown.Table] | None = None
) -> str:
    """Writes the model card of a run into its folder and returns the path.

    Args:
        folder: Folder of the run, whose log has the scores.
        metadata: The content of run.json:
            - command: The command line, as one string.
            - flags: All flags, by name.
            - config: The configuration of the model, with the keys of bert_config.json.
            - parameters: The number of weights.
            - data: The manifests of the training records, each as the JSON object of its file.
            - evaluation_data: The manifests of the evaluation records.
            - versions: Versions of official_bert, tensorflow, keras and python, by name.
            - devices: Short names of the devices, such as CPU:0.
            - records: Name, size and hash of each record file, in a list for each phase.
            - changes: Options that were changed when the run was resumed: step, option, before and now of each.
        sections: Tables for the start of the card, by title.

    Raises:
        UserError: If the log is damaged or the file cannot be written.
    """
    path = os.path.join(folder, CARD_FILE)
    name, notices = os.path.basename(os.path.normpath(folder)), read_log(folder, NOTICES)
    card = model_card(name, summary.read_logs(folder), metadata, notices, sections or {})
    files.write_text(path, card)
    return path


def model_card(
    name: str,
    logs: Logs,
    metadata: Mapping[str, Any],
    notices: Sequence[Mapping[str, Any]],
    sections: Mapping[str, markdown.Table],
) -> str:
    """Returns the text of the card. See `write_model_card` for the arguments."""
    flags, config = metadata["flags"], BertConfig.from_dict(metadata["config"])
    parts = [f"# {markdown.escape(name)}", _describe_model(metadata, config)]
    for title, rows in sections.items():
        parts += [f"## {title}", markdown.table(rows)]

    parts += ["## Model", markdown.table(summary.make_model_table(metadata)), _describe_tokenization(flags)]

    parts.append("## Data")
    parts.append(markdown.table(summary.make_file_table(metadata["records"])) or "The records are not recorded.")
    parts.append(_describe_missing_manifests(metadata))
    parts += [markdown.table(summary.make_data_table(manifest)) for manifest in metadata["data"]]

    parts += ["## Training", markdown.table(summary.make_amount_table(logs[TRAIN]))]
    parts.append(f"The command: {markdown.code(metadata['command'])}")
    parts += [markdown.table(markdown.flag_table(flags)), markdown.table(summary.make_environment_table(metadata))]
    if changes := metadata["changes"]:
        parts += ["These are the flags of the last steps. They were changed during the run:", _list_changes(changes)]
    if notices:
        parts.append(f"## Notices\n\nAt most {_MOST_NOTICES} are shown. {NOTICES}.jsonl contains all.")
        shown = [
            f"- step {each['step']:,}: {markdown.escape(str(each['notice']))}" for each in notices[-_MOST_NOTICES:]
        ]
        parts.append("\n".join(shown))

    scores = markdown.table(summary.make_score_table(logs, config.token_objective))
    parts += ["## Scores", scores or "Nothing was measured.", _describe_evaluation(logs, metadata)]

    parts += ["## Limits", "\n".join(f"- {limit}" for limit in _list_limits(logs, flags, config))]
    parts.append("_official-bert pretrain overwrites this file at the end of a run. Keep your edits in a copy._")
    return "\n\n".join(part for part in parts if part) + "\n"


def _list_changes(changes: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for each in changes:
        change = describe_changes({each["option"]: (each["before"], each["now"])}, CHANGE_DESCRIPTIONS)
        lines.append(f"- from step {each['step']:,}: {markdown.escape(change)}")
    return "\n".join(lines)


def _describe_model(metadata: Mapping[str, Any], config: BertConfig) -> str:
    learned, can = ["masked tokens"], ["fills in masked tokens"]
    if not config.predicts_masked_tokens:
        learned, can = ["each token from the tokens before it"], ["predicts the next token"]
    data = metadata["data"]
    objective = get_objective(data[0]["source"]["flags"] if data else {})
    if metadata["flags"]["next_sentence_prediction"] and objective != NONE:
        learned.append("next sentences")
        can.append("judges whether one sentence follows another")
    without = "" if len(learned) > 1 else " Its pooler is not trained, because the sentence objective was disabled."
    return (
        "A BERT encoder ([Devlin et al.](https://arxiv.org/abs/1810.04805)), pre-trained to predict "
        f"{' and '.join(learned)}. It has {config.num_hidden_layers} layers of width {config.hidden_size} with "
        f"{config.num_attention_heads} attention heads.{without} It is meant for fine-tuning. Without fine-tuning, it "
        f"{' and '.join(can)}."
    )


def _describe_tokenization(flags: Mapping[str, Any]) -> str:
    if flags["do_lower_case"] is None or not flags["vocab_file"]:
        return ""
    accents = "with" if flags["strip_accents"] is False else "without"
    case = f"lower-cased, {accents} accents," if flags["do_lower_case"] else "not lower-cased"
    return f"Text is {case} and split into the word pieces of `vocab.txt`, in the folder of the checkpoints."


def _describe_missing_manifests(metadata: Mapping[str, Any]) -> str:
    """Returns a sentence about the training records without a manifest, or "" if there are none."""
    shards = [(phase, shard) for phase, shards in metadata["records"].items() for shard in shards]
    num_files = len({(phase, *shard.values()) for phase, shard in shards if not shard["sha256"]})
    if not num_files:
        return ""
    files = "1 file has" if num_files == 1 else f"{num_files:,} files have"
    return f"{files} no manifest. The number of their records and the text that they were made from are unknown."


def _describe_evaluation(logs: Logs, metadata: Mapping[str, Any]) -> str:
    if not logs[EVAL]:
        return ""
    evaluated = metadata["evaluation_data"]
    if not evaluated:
        return "The evaluation records are not recorded, so it is unknown whether the model was trained on them."
    shared = summary.find_shared_shards(metadata["data"], evaluated)
    if shared:
        names = markdown.escape(", ".join(sorted(shared)))
        return f"Evaluated on records that it was trained on ({names}). The scores do not apply to other text."
    return "\n\n".join(
        ["Evaluated on these records:", *(markdown.table(summary.make_data_table(each)) for each in evaluated)]
    )


def _list_limits(logs: Logs, flags: Mapping[str, Any], config: BertConfig) -> list[str]:
    limits = []
    examples = summary.compute_amounts(logs[TRAIN])["examples"]
    if examples:
        limits.append(
            f"It was trained on {pluralize(round(examples), 'sequence')}, the original models on "
            f"{_ORIGINAL_SEQUENCES:,}. With fewer sequences, a model is weaker than a released model of the same size."
        )
    if flags["init_checkpoint"]:
        limits.append("It started from trained weights (--init_checkpoint). Their training is not counted here.")
    longest = max((line[LENGTH] for line in logs[TRAIN]), default=flags[LENGTH])
    positions = config.max_position_embeddings
    if longest < positions and not flags["init_checkpoint"]:
        limits.append(
            f"It was trained on sequences of at most {longest} tokens. Its embeddings of the positions from there to "
            f"{positions} are untrained."
        )
    if not logs[EVAL]:
        limits.append("It was not evaluated in this run.")
    limits.append(
        "The scores measure the pre-training objectives on text like the records. Only fine-tuning shows how useful "
        "the model is for a task."
    )
    limits.append(
        "It reproduces the language, errors and biases of the text above. Nobody has checked it for them, and the "
        "licence of the text is not recorded here."
    )
    return limits
