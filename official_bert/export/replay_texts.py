"""The texts of a replay for a model of any kind."""

from collections.abc import Mapping
from typing import Any

from official_bert.kinds.all_kinds import SPECS, create_spec
from official_bert.kinds.names import FILL_MASK
from official_bert.kinds.synthetic_texts import ODD_TEXTS, SHORT, SyntheticTexts
from official_bert.tokenization.exact import MASK, FullTokenizer


def made_up_texts(tokenizer: FullTokenizer, kind: str, task_spec: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Returns texts for a model of a kind, a column for each of its inputs. They are always the same.

    Args:
        tokenizer: The tokenizer that determines the lengths of the texts.
        kind: See graph_models.build_graph_model.
        task_spec: The contents of task.json, or max_seq_length alone for models without a task.
    """
    synthetic = SyntheticTexts(tokenizer)
    length = int(task_spec["max_seq_length"])
    if kind in SPECS:
        return create_spec({**task_spec, "kind": kind}).synthetic_texts(synthetic, length)
    if kind == FILL_MASK:
        return {"text": _texts_with_masks(synthetic, tokenizer, length - 2)}
    return {"text": synthetic.single(length - 2)}


def _texts_with_masks(synthetic: SyntheticTexts, tokenizer: FullTokenizer, room: int) -> list[str]:
    """Returns texts with masks that fit in the room."""
    texts = [MASK, f"{MASK}{MASK} , {MASK} .", *(f"{odd} {MASK}" for odd in ODD_TEXTS)]
    for tokens in (SHORT, room - 1, room):
        words = synthetic.text(tokens).split(" ")
        for position in synthetic.random.sample(range(tokens), 3):
            words[position] = MASK
        texts.append(" ".join(words))
    return [text for text in texts if len(tokenizer.tokenize(text, special_tokens=True)) <= room]
