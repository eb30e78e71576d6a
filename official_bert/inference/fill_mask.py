"""The fill-mask command and its Python function: predicts the masked tokens of texts with a pre-trained model.

P masks of a text, V tokens of the vocabulary
"""

import dataclasses
import functools
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from official_bert.checkpoints import loading
from official_bert.checkpoints.loading import ModelAndTokenizer
from official_bert.errors import UserError
from official_bert.inference import exports
from official_bert.inference.keras_model import KerasPredictor, compute_outputs
from official_bert.inference.options import FillMaskOptions
from official_bert.kinds.features import Array, Features, Outputs, concatenate_rows
from official_bert.kinds.names import FILL_MASK
from official_bert.kinds.probabilities import softmax
from official_bert.kinds.spec import KindSpec
from official_bert.tokenization import pairs
from official_bert.tokenization.exact import CLS, MASK, SEP, FullTokenizer

_TEXTS_AT_A_TIME = 64  # Limits the memory for logits.


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A token that may replace a [MASK], and its probability from 0 to 1."""

    token: str
    probability: float


def fill_mask(loaded: ModelAndTokenizer, text: str, top_k: int = 5) -> list[list[Candidate]]:
    """Returns the most probable tokens for each [MASK] in a text: for each [MASK] a list of candidates, best first.

    Args:
        loaded: A pre-training model, as `load_pretraining_model` returns it.
        text: A text that contains [MASK] one or more times.
        top_k: Number of candidates for each [MASK].

    Raises:
        UserError: If the text has no [MASK] or is too long for the model, or if the model has no masked-LM head.
    """
    return fill_masks(loaded, [text], top_k)[0]


def fill_masks(loaded: ModelAndTokenizer, texts: Iterable[str], top_k: int = 5) -> list[list[list[Candidate]]]:
    """Returns the most probable tokens for each [MASK] in several texts (see `fill_mask`), computed in batches."""
    predictor, waiting, filled = make_predictor(loaded, top_k), iter(texts), list[list[list[Candidate]]]()
    while some := list(itertools.islice(waiting, _TEXTS_AT_A_TIME)):
        for row in exports.to_rows(predictor.run(exports.to_columns({"text": some}))):
            masks = zip(row["tokens"], row["probabilities"], strict=True)
            filled.append([list(map(Candidate, *mask)) for mask in masks])
    return filled


def make_predictor(loaded: ModelAndTokenizer, top_k: int) -> KerasPredictor:
    """Returns a predictor that maps texts to the top_k tokens of each [MASK], [B, P, top_k], and their probabilities.

    Args:
        loaded: A pre-training model or a masked LM, which returns only the logits.
        top_k: Number of tokens for each [MASK].

    Raises:
        UserError: If the model has no masked-LM head, or top_k is not a whole number from 1 to the vocabulary's size.
    """
    loaded.config.require_masked_lm()
    if "masked_lm_positions" not in loaded.model.input:
        raise UserError("The model is an encoder without a masked-LM head. Load it with load_pretraining_model.")
    if top_k not in range(1, len(loaded.tokenizer.vocab) + 1):
        raise UserError(f"top_k is {top_k}; it must be a whole number from 1 to {len(loaded.tokenizer.vocab)}.")
    max_seq_length = loaded.config.max_position_embeddings
    mask_id = loaded.tokenizer.vocab[MASK]

    def forward(inputs: dict[str, tf.Tensor]) -> Any:
        is_mask = inputs["input_ids"].numpy() == mask_id
        positions = np.argsort(~is_mask, axis=-1, kind="stable")[:, : is_mask.sum(axis=-1).max()]
        inputs = {**inputs, "masked_lm_positions": tf.constant(positions, tf.int32)}
        outputs = loaded.model(inputs, training=False)
        return outputs["masked_lm_logits"] if isinstance(outputs, dict) else outputs

    compute = functools.partial(compute_outputs, forward, max_seq_length=max_seq_length)
    spec = _FillMaskSpec(tokenizer=loaded.tokenizer, top_k=int(top_k))
    return KerasPredictor(spec, loaded.tokenizer, max_seq_length, compute)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _FillMaskSpec(KindSpec):
    """The KindSpec of filling masks. A prediction is the probability of each token for each [MASK], float64 [P, V]."""

    kind: ClassVar[str] = FILL_MASK
    discrete_outputs: ClassVar[tuple[str, ...]] = ("tokens",)
    answer_dtypes: ClassVar[Mapping[str, Any]] = {"tokens": object, "probabilities": np.float64}

    tokenizer: FullTokenizer
    top_k: int

    def make_examples(self, x: Any, y: Any) -> list[str]:
        return list(x)

    def featurize(self, examples: Sequence[str], tokenizer: FullTokenizer, max_seq_length: int) -> Features:
        ids, segment_ids = [], []
        for text in examples:
            tokens, segments = pairs.join(CLS, SEP, tokenizer.tokenize(text, special_tokens=True))
            if MASK not in tokens:
                raise UserError(f"The text {text!r} has no {MASK}. Write {MASK} in place of the word to predict.")
            if len(tokens) > max_seq_length:
                raise UserError(
                    f"The text {text[:60]!r} has {len(tokens)} tokens; the model takes at most {max_seq_length}. "
                    "Shorten it."
                )
            ids.append(np.array(tokenizer.convert_tokens_to_ids(tokens), np.int32))
            segment_ids.append(np.array(segments, np.int32))
        return concatenate_rows(ids, segment_ids, {}, {}, is_truncated=[False] * len(ids))

    def decode(self, outputs: Outputs, features: Features, examples: Sequence[str]) -> list[Array]:
        is_mask = features.input_ids == self.tokenizer.vocab[MASK]
        counts = np.add.reduceat(is_mask, features.splits[:-1], dtype=int)
        # The embedding table may have more rows than the vocabulary has tokens.
        logits = [np.asarray(row[:count], np.float64)[:, self._ids] for row, count in zip(outputs, counts, strict=True)]
        return list(map(softmax, logits))

    def named_answers(self, predictions: Sequence[Array], examples: Sequence[str]) -> dict[str, list[Any]]:
        best = [np.argsort(-row, kind="stable")[:, : self.top_k] for row in predictions]
        tokens = np.array([self.tokenizer.inv_vocab[index] for index in self._ids], object)
        return {
            "tokens": [tokens[indices].tolist() for indices in best],
            "probabilities": [
                np.take_along_axis(row, indices, -1).tolist() for row, indices in zip(predictions, best, strict=True)
            ],
        }

    def margins(self, outputs: Outputs, features: Features, examples: Sequence[str]) -> list[float]:
        predictions = self.decode(outputs, features, examples)
        return [float(-np.diff(-np.sort(-row)[:, : self.top_k + 1]).max()) for row in predictions]

    @property
    def _ids(self) -> list[int]:
        return sorted(self.tokenizer.inv_vocab)


def print_candidates(options: FillMaskOptions, texts: list[str]) -> None:
    """Prints each text with the candidates for each of its masks, as text or as JSON.

    Args:
        options: The flags.
        texts: The texts on the command line.

    Raises:
        UserError: If `texts` is empty, a text has no [MASK] or is too long, or the model cannot be loaded.
    """
    if not texts:
        raise UserError('Pass at least one text, in quotes: "the capital of france is [MASK] ."')
    loaded = loading.load_pretraining_model(options.model_dir)
    for text, masks in zip(texts, fill_masks(loaded, texts, options.top_k), strict=True):
        if options.json:
            candidates = [list(map(dataclasses.asdict, mask)) for mask in masks]
            print(json.dumps({"text": text, "masks": candidates}, ensure_ascii=False))
            continue
        print(text)
        for mask in masks:
            for candidate in mask:
                print(f"  {100 * candidate.probability:5.1f} %  {candidate.token}")
            print()
