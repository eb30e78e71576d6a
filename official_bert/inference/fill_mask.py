"""The fill-mask command, and its function: predicts the masked tokens of a text with a pre-trained model.

P masks of a text, V tokens of the vocabulary
"""

import dataclasses
import json

import numpy as np

from official_bert.checkpoints import loading
from official_bert.checkpoints.loading import Loaded
from official_bert.errors import UserError
from official_bert.inference.options import FillMaskOptions
from official_bert.tokenization import pairs
from official_bert.tokenization.exact import CLS, MASK, SEP


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A token for a mask, and its probability from 0 to 1."""

    token: str
    probability: float


def fill_mask(loaded: Loaded, text: str, top_k: int = 5) -> list[list[Candidate]]:
    """Returns the most probable tokens for each [MASK] in a text, best first.

    Args:
        loaded: A pre-training model, as `load_pretraining_model` returns it.
        text: A text with one or more [MASK].
        top_k: Number of candidates for each mask.

    Raises:
        UserError: If the text has no [MASK] or is too long for the model, or if the model has no masked-LM head.
    """
    model, config, tokenizer = loaded
    config.require_masked_lm()
    if not 1 <= top_k <= len(tokenizer.vocab):
        raise UserError(f"top_k is {top_k}; it must be from 1 to {len(tokenizer.vocab)}.")
    tokens, segment_ids = pairs.join(CLS, SEP, tokenizer.tokenize(text, special_tokens=True))
    positions = [position for position, token in enumerate(tokens) if token == MASK]
    if not positions:
        raise UserError(f"The text {text!r} has no {MASK}. Write {MASK} in place of the word to predict.")
    if len(tokens) > config.max_position_embeddings:
        raise UserError(f"The text has {len(tokens)} tokens; the model takes at most {config.max_position_embeddings}.")
    features = {
        "input_ids": [tokenizer.convert_tokens_to_ids(tokens)],
        "input_mask": [[1] * len(tokens)],
        "segment_ids": [segment_ids],
        "masked_lm_positions": [positions],
    }
    outputs = model({name: np.array(values, np.int32) for name, values in features.items()}, training=False)
    ids = sorted(tokenizer.inv_vocab)  # The embedding table may have more rows than the vocabulary has tokens.
    logits = np.asarray(outputs["masked_lm_logits"][0], np.float64)[:, ids]  # [P, V]
    probabilities = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities /= probabilities.sum(axis=-1, keepdims=True)
    return [
        [
            Candidate(tokenizer.inv_vocab[ids[index]], float(row[index]))
            for index in np.argsort(-row, kind="stable")[:top_k]
        ]
        for row in probabilities
    ]


def print_candidates(options: FillMaskOptions, texts: list[str]) -> None:
    """Prints each text with the candidates for each of its masks.

    Raises:
        UserError: If `texts` is empty, `fill_mask` rejects a text, or the model cannot be loaded.
    """
    if not texts:
        raise UserError('Pass at least one text, in quotes: "the capital of france is [MASK] ."')
    loaded = loading.load_pretraining_model(options.model_dir)
    for text in texts:
        masks = fill_mask(loaded, text, options.top_k)
        if options.json:
            candidates = [list(map(dataclasses.asdict, mask)) for mask in masks]
            print(json.dumps({"text": text, "masks": candidates}, ensure_ascii=False))
            continue
        print(text)
        for mask in masks:
            for candidate in mask:
                print(f"  {100 * candidate.probability:5.1f} %  {candidate.token}")
            print()
