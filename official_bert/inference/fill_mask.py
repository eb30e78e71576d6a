"""What a pre-trained model would put in place of [MASK]."""

import dataclasses

import keras
import numpy as np

from official_bert.checkpoints import loading
from official_bert.errors import UserError
from official_bert.inference.options import FillMaskOptions
from official_bert.modeling.config import BertConfig
from official_bert.tokenization import pairs
from official_bert.tokenization.exact import CLS, MASK, SEP, FullTokenizer


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A word piece and how likely the model finds it, from 0 to 1."""

    token: str
    probability: float


def fill_mask(
    model: keras.Model, tokenizer: FullTokenizer, config: BertConfig, text: str, top_k: int = 5
) -> list[list[Candidate]]:
    """Returns for each [MASK] in the text, in order, the likeliest pieces, best first.

    Args:
        model: a pre-training model.
        tokenizer: its tokenizer.
        config: its configuration.
        text: a sentence with one or more [MASK].
        top_k: how many candidates to return for each.

    Raises:
        UserError: If the text has no [MASK] or is longer than the model reads, or if the model is no masked LM.
    """
    config.require_masked_lm()
    if not 1 <= top_k <= len(tokenizer.vocab):
        raise UserError(f"{top_k} candidates were asked for; expected 1 to {len(tokenizer.vocab)}")
    tokens, segment_ids = pairs.join(CLS, SEP, tokenizer.tokenize(text, special_tokens=True))
    positions = [position for position, token in enumerate(tokens) if token == MASK]
    if not positions:
        raise UserError(f"the text {text!r} has no {MASK}; write {MASK} where a word is to be filled in")
    if len(tokens) > config.max_position_embeddings:
        raise UserError(f"the text has {len(tokens)} tokens; the model reads {config.max_position_embeddings}")
    features = {
        "input_ids": [tokenizer.convert_tokens_to_ids(tokens)],
        "input_mask": [[1] * len(tokens)],
        "segment_ids": [segment_ids],
        "masked_lm_positions": [positions],
    }
    outputs = model({name: np.array(values, np.int32) for name, values in features.items()}, training=False)
    # The table may have rows that no token of the vocabulary has.
    ids = sorted(tokenizer.inv_vocab)
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
    """Prints each text with the candidates for each of its [MASK].

    Raises:
        UserError: no text was given, a text is as `fill_mask` refuses it, or the model cannot be loaded.
    """
    if not texts:
        raise UserError('no text was given; add one, in quotes: "the capital of france is [MASK] ."')
    model, config, tokenizer = loading.load_pretraining_model(options.model_dir)
    for text in texts:
        print(text)
        for candidates in fill_mask(model, tokenizer, config, text, options.top_k):
            for candidate in candidates:
                print(f"  {100 * candidate.probability:5.1f} %  {candidate.token}")
            print()
