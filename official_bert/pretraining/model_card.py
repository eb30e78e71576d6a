"""The model card: what a reader must know of a pre-trained model, in Markdown."""

import html
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from official_bert.data.sentence_objectives import NEXT_SENTENCE, NONE, objective_of
from official_bert.pretraining import summary
from official_bert.pretraining.curves import LENGTH, Curves, phases
from official_bert.utils.counting import counted

_ORIGINAL_SEQUENCES = 256_000_000  # 1,000,000 steps of 256 sequences (the paper, section A.2)


def model_card(
    curves: Curves,
    metadata: Mapping[str, Any],
    notices: Sequence[Mapping[str, Any]],
    sections: Mapping[str, summary.Table],
) -> str:
    """Returns the card's text; for the arguments see report.write_report."""
    flags = metadata.get("flags", {})
    parts = [f"# {_text(curves.name)}", _introduction(metadata)]
    for title, rows in sections.items():
        parts += [f"## {title}", _table(rows)]

    parts += ["## Model", _table(summary.model_table(metadata)), _tokenization(flags)]

    parts.append("## Data")
    if not metadata.get("data"):
        parts.append("The records have no manifest beside them; what they were made from is not known.")
    parts += [_table(summary.data_table(manifest)) for manifest in metadata.get("data", ())]

    parts += ["## Training", _table(summary.amount_table(curves))]
    if metadata.get("command"):
        parts.append(f"The command: {_code(str(metadata['command']))}")
    parts += [_table(summary.flag_table(flags)), _table(summary.environment_table(metadata))]
    if notices:
        parts.append("\n".join(f"- step {each['step']:,}: {_text(str(each['notice']))}" for each in notices))

    scores = _table(summary.score_table(curves))
    parts += ["## Scores", scores or "Nothing was measured.", _evaluated_on(curves, metadata)]

    parts += ["## Limits", "\n".join(f"- {limit}" for limit in _limits(curves, metadata))]
    parts.append(
        "_official-bert pretrain writes this file at the end of a run, over the one before: keep your edits in a copy._"
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _introduction(metadata: Mapping[str, Any]) -> str:
    config, flags = metadata.get("config", {}), metadata.get("flags", {})
    sizes = ""
    if {"num_hidden_layers", "hidden_size", "num_attention_heads"} <= set(config):
        sizes = (
            f" It has {config['num_hidden_layers']} layers of width {config['hidden_size']} with "
            f"{config['num_attention_heads']} attention heads."
        )
    learned, can = ["masked tokens"], ["fills in masked tokens"]
    if config.get("causal_attention"):
        learned, can = ["each token by those before it (causal attention)"], ["predicts the next token"]
    data = metadata.get("data", ())
    objective = objective_of(data[0].get("source", {}).get("flags", {})) if data else NEXT_SENTENCE
    if flags.get("next_sentence_prediction", True) and objective != NONE:
        learned.append("next sentences" if objective == NEXT_SENTENCE else "the order of sentences")
        can.append("judges whether one sentence follows another")
    without = "" if len(learned) > 1 else " Its pooler is not trained: the loss of the sentence labels was left out."
    return (
        "A BERT encoder ([Devlin et al.](https://arxiv.org/abs/1810.04805)), pre-trained from "
        f"{' and '.join(learned)}.{sizes}{without} It is a start for fine-tuning; by itself it {' and '.join(can)}."
    )


def _tokenization(flags: Mapping[str, Any]) -> str:
    if flags.get("do_lower_case") is None or not flags.get("vocab_file"):
        return ""
    accents = "with" if flags.get("strip_accents") is False else "without"
    case = f"lower-cased, {accents} accents" if flags["do_lower_case"] else "with its case"
    return f"Text is read {case} and cut into the word pieces of `vocab.txt`, which stands beside the checkpoints."


def _evaluated_on(curves: Curves, metadata: Mapping[str, Any]) -> str:
    if not curves.eval:
        return ""
    evaluated = metadata.get("evaluation_data")
    if not evaluated:
        return "Which records the model was evaluated on, and whether it was trained on them, is not recorded."
    shared = summary.shared_shards(metadata.get("data", ()), evaluated)
    if shared:
        return (
            f"Evaluated on records that it was trained on ({_text(', '.join(sorted(shared)))}): the scores say nothing "
            "about other text."
        )
    return "\n\n".join(["Evaluated on these records:", *(_table(summary.data_table(each)) for each in evaluated)])


def _limits(curves: Curves, metadata: Mapping[str, Any]) -> list[str]:
    config, flags = metadata.get("config", {}), metadata.get("flags", {})
    limits = []
    examples = summary.amounts(curves)["examples"]
    if examples:
        limits.append(
            f"It has seen {counted(round(examples), 'sequence')}; the original models saw {_ORIGINAL_SEQUENCES:,}. "
            "One pre-trained for less is weaker than a released model of the same size."
        )
    if flags.get("init_checkpoint"):
        limits.append("It started from other weights (--init_checkpoint); what those have seen is not counted here.")
    lengths = [length for length, _ in phases(curves.train) if length] or [flags.get(LENGTH)]
    longest, positions = max(filter(None, lengths), default=None), config.get("max_position_embeddings")
    if longest and positions and longest < positions and not flags.get("init_checkpoint"):
        limits.append(
            f"It was trained on sequences of at most {longest} tokens; its embeddings of the positions from there to "
            f"{positions} have learnt nothing."
        )
    if not curves.eval:
        limits.append("It was not evaluated in this run.")
    limits.append(
        "The scores are of masked tokens and sentence pairs, in text like that of the records; what it is worth for a "
        "task shows in fine-tuning alone."
    )
    limits.append(
        "It repeats the language, the errors and the prejudices of the text above. Nobody has checked it for them, and "
        "the licence of the text is not recorded here."
    )
    return limits


def _text(text: str) -> str:
    """Text as it stands, in Markdown: nothing of it is markup."""
    escaped = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`*\[\]#|]|\b_|_\b)", r"\\\1", escaped)  # within a word, _ is no markup


def _code(text: str) -> str:
    """A code span; its fence is longer than any run of backticks in it."""
    fence = next(fence for fence in ("`" * count for count in itertools.count(1)) if fence not in text)
    return f"{fence} {text} {fence}" if len(fence) > 1 else f"`{text}`"


def _table(table: summary.Table) -> str:
    if len(table) < 2:
        return ""
    rows = [f"| {' | '.join(map(_text, row))} |" for row in table]
    return "\n".join([rows[0], "|---" * len(table[0]) + "|", *rows[1:]])
