"""Words that are hidden in a text, filled in; and learning a field's language from its texts.

B texts, P predictions, V vocabulary
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_bert.data.dynamic_masking import DynamicMasking
from official_bert.errors import UserError
from official_bert.export.text_models import FILL_MASK
from official_bert.inference import fill_mask
from official_bert.inference.fill_mask import Candidate
from official_bert.keras_models import inputs
from official_bert.keras_models.tagging import TagAccuracy, TokenModel
from official_bert.modeling.config import BertConfig
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.tasks import sequences
from official_bert.tasks.sequences import TextExample
from official_bert.tasks.task import NO_LABEL, Features, TaggingLoss

_LOGITS = "masked_lm_logits"


@keras.saving.register_keras_serializable(package="official_bert")
class MaskedLM(TokenModel):
    """Fills in [MASK], and learns from texts alone (paper, section 3.1, task 1; next sentences are not judged).

    x is texts. predict takes texts with [MASK] and returns for each text, for each of its [MASK], the likeliest pieces.
    fit takes texts without labels and hides other tokens in each epoch, as pre-training with dynamic masking does.

    Args:
        config: the encoder's sizes.
        vocab: the text of its vocab.txt.
        masked_lm_prob: the share of tokens to predict in fit.
        max_predictions_per_seq: how many of a text at most.
        do_whole_word_mask: whether all pieces of a word are hidden together.
        settings: as of BaseTextModel.
    """

    kind = FILL_MASK
    default_name = "masked_lm"
    needs_labels = False

    def __init__(
        self,
        config: BertConfig | Mapping[str, Any],
        vocab: str,
        *,
        masked_lm_prob: float = 0.15,
        max_predictions_per_seq: int = 20,
        do_whole_word_mask: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(config, vocab, **settings)
        if self.bert_config.causal_attention:
            raise UserError("the model has causal attention: it predicts the next token, and cannot fill in [MASK]")
        self.masked_lm_prob, self.max_predictions_per_seq = masked_lm_prob, max_predictions_per_seq
        self.do_whole_word_mask = do_whole_word_mask
        self._masking = DynamicMasking(
            vocab=self._tokenizer.exact.vocab,
            max_predictions_per_seq=max_predictions_per_seq,
            masked_lm_prob=masked_lm_prob,
            do_whole_word_mask=do_whole_word_mask,
        )

    def _build_core(self, encoder: keras.Model, seed: int) -> keras.Model:
        # The encoder is built again within: its initial weights are a function of the seed.
        policy = encoder.get_layer("word_embeddings").dtype_policy.name
        whole = build_pretraining_model(self.bert_config, seed=seed, dtype=policy)
        return keras.Model(whole.input, whole.output[_LOGITS])

    def _own_config(self) -> dict[str, Any]:
        return {
            "masked_lm_prob": self.masked_lm_prob,
            "max_predictions_per_seq": self.max_predictions_per_seq,
            "do_whole_word_mask": self.do_whole_word_mask,
        }

    def _task_spec(self) -> dict[str, Any]:
        return {**super()._task_spec(), "task": None}

    def _head_note(self, has_head: bool) -> str:
        return "the masked-LM head is the checkpoint's" if has_head else "the masked-LM head is new: train it"

    def save_checkpoint(self, folder: str) -> None:
        raise UserError("a masked LM is no fine-tuned model; save it by save, or its SavedModel by export")

    def _examples(self, x: Any, y: Any) -> list[TextExample]:
        if y is not None:
            raise UserError("a masked LM hides tokens itself; leave out y")
        return [TextExample(str(number), text, None, None) for number, text in enumerate(inputs.as_texts(x))]

    def _weighed(self, x: Any, y: Any, sample_weight: Any, class_weight: Any) -> Any:
        if sample_weight is not None or class_weight:
            raise UserError("a masked LM has no classes, and weighs all texts alike; leave out the weights")
        return super()._weighed(x, y, None, None)

    def _featurize(self, examples: Sequence[TextExample]) -> Features:
        return sequences.featurize(examples, self._tokenizer, self.max_seq_length, kind="classification", num_labels=0)

    def _labelled(self, examples: Sequence[TextExample]) -> Features:
        if not examples:
            raise UserError("there are no examples")
        return self._featurize(examples)

    def _batch(self, features: Features, rows: Any, epoch: int, first: int = 0) -> tuple[dict[str, Any], Any]:
        ids = self._padded_inputs(features, rows)
        keys = [hash((self.seed, epoch, first + int(row))) for row in rows]
        masked = self._masking.mask(
            {name: tf.constant(each) for name, each in ids.items()}, tf.constant(keys, tf.int64)
        )
        hidden = {name: np.asarray(each) for name, each in masked.items()}
        targets = np.where(hidden["masked_lm_weights"] > 0, hidden["masked_lm_ids"], NO_LABEL).astype(np.int32)
        names = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")
        return {name: hidden[name].astype(np.int32) for name in names}, targets

    def _task_loss(self) -> Any:
        return TaggingLoss()  # the mean over the predictions that are there

    def _task_metrics(self) -> Any:
        return [TagAccuracy()]

    def _answer(self, x: Any, batch_size: int) -> list[list[list[Candidate]]]:
        return self.fill(x)

    def fill(self, x: Any, top_k: int = 5) -> list[list[list[Candidate]]]:
        """Returns for each text, for each of its [MASK], the `top_k` likeliest pieces, best first."""

        def forward(features: dict[str, Any], training: bool) -> dict[str, Any]:
            return {_LOGITS: self(features, training=training)}

        exact = self._tokenizer.exact
        return [fill_mask.fill_mask(forward, exact, self.bert_config, text, top_k) for text in inputs.as_texts(x)]
