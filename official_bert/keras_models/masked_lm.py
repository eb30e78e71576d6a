"""Words that are hidden in a text, filled in; and learning a field's language from its texts.

B texts, P predictions, V vocabulary
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from official_bert.data.dynamic_masking import DynamicMasking
from official_bert.errors import UserError
from official_bert.inference import fill_mask
from official_bert.inference.fill_mask import Candidate
from official_bert.keras_models.text_model import TextModel
from official_bert.kinds import input_adapters, text_spec
from official_bert.kinds.features import NO_LABEL, Array, Features
from official_bert.kinds.losses import TaggingLoss
from official_bert.kinds.metrics import TagAccuracy
from official_bert.kinds.model import KindModel
from official_bert.kinds.names import FILL_MASK
from official_bert.kinds.spec import KindSpec
from official_bert.kinds.text_spec import TextExample
from official_bert.modeling.config import BertConfig
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.tokenization.exact import FullTokenizer

_LOGITS = "masked_lm_logits"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLMHead(KindSpec):
    """The masked-LM head on texts alone, whose targets are drawn anew in each epoch: int32 [B, P].

    Attributes:
        masking: draws them.
    """

    kind: ClassVar[str] = FILL_MASK
    needs_labels: ClassVar[bool] = False
    weighs_examples: ClassVar[bool] = False

    masking: DynamicMasking

    @classmethod
    def model_module(cls) -> str:
        return __name__

    def examples(self, x: Any, y: Any) -> list[TextExample]:
        if y is not None:
            raise UserError("a masked LM hides tokens itself; leave out y")
        return [TextExample(str(number), text) for number, text in enumerate(input_adapters.as_texts(x))]

    def featurize(self, examples: Sequence[TextExample], tokenizer: FullTokenizer, max_seq_length: int) -> Features:
        return text_spec.featurize(examples, tokenizer, max_seq_length)

    def drawn(self, batch: tuple[Any, ...], keys: Sequence[int]) -> tuple[Any, ...]:
        ids = {name: tf.constant(each) for name, each in batch[0].items()}
        masked = {name: np.asarray(each) for name, each in self.masking.mask(ids, tf.constant(keys, tf.int64)).items()}
        targets = np.where(masked["masked_lm_weights"] > 0, masked["masked_lm_ids"], NO_LABEL).astype(np.int32)
        names = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")
        return {name: masked[name].astype(np.int32) for name in names}, targets


class Model(KindModel[MaskedLMHead]):
    """The loss and metrics of the masked-LM head, which `MaskedLM` builds itself."""

    def build_head(self, encoder: keras.Model, seed: int | None) -> keras.Model:
        raise NotImplementedError

    def loss(self) -> TaggingLoss:
        return TaggingLoss()  # the mean over the predictions that are there

    def metrics(self) -> Any:
        return [TagAccuracy()]


@keras.saving.register_keras_serializable(package="official_bert")
class MaskedLM(TextModel):
    """Fills in [MASK], and learns from texts alone (paper, section 3.1, task 1; next sentences are not judged).

    x is texts. predict takes texts with [MASK] and returns for each text, for each of its [MASK], the likeliest pieces.
    fit takes texts without labels and hides other tokens in each epoch, as pre-training with dynamic masking does.

    The pooler and the next-sentence head of the checkpoint are kept as they are, and written by save and
    save_checkpoint, so that what is made of the model next has them.

    Args:
        config: the encoder's sizes.
        vocab: the text of its vocab.txt.
        masked_lm_prob: the share of tokens to predict in fit.
        max_predictions_per_seq: how many of a text at most.
        do_whole_word_mask: whether all pieces of a word are hidden together.
        settings: as of TextModel.
    """

    head: MaskedLMHead
    default_name = "masked_lm"

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
        masking = DynamicMasking(
            vocab=FullTokenizer.from_vocab(vocab).vocab,
            max_predictions_per_seq=max_predictions_per_seq,
            masked_lm_prob=masked_lm_prob,
            do_whole_word_mask=do_whole_word_mask,
        )
        super().__init__(MaskedLMHead(masking=masking), config, vocab, **settings)
        self.bert_config.require_masked_lm()
        self._masking_settings = {
            "masked_lm_prob": masked_lm_prob,
            "max_predictions_per_seq": max_predictions_per_seq,
            "do_whole_word_mask": do_whole_word_mask,
        }

    def _build_core(self, dtype: str, seed: int) -> keras.Model:
        whole = build_pretraining_model(self.bert_config, seed=seed, dtype=dtype)
        core = keras.Model(whole.input, whole.output[_LOGITS])
        held = {variable.path for variable in core.variables}
        self._kept = {
            variable.path: np.asarray(variable, np.float32) for variable in whole.variables if variable.path not in held
        }
        return core

    def _assign_weights(self, weights: Mapping[str, Array]) -> None:
        super()._assign_weights(weights)
        self._kept = {path: weights.get(path, value) for path, value in self._kept.items()}

    def _weights(self) -> dict[str, Array]:
        return super()._weights() | dict(self._kept)

    def save_own_variables(self, store: Any) -> None:
        for path, value in self._kept.items():
            store[path.replace("/", ".")] = value

    def load_own_variables(self, store: Any) -> None:
        stored = {name.replace(".", "/"): np.asarray(store[name]) for name in store.keys()}  # noqa: SIM118
        self._kept = {path: stored.get(path, value) for path, value in self._kept.items()}

    def _own_config(self) -> dict[str, Any]:
        return dict(self._masking_settings)

    def _head_note(self, has_head: bool) -> str:
        return "the masked-LM head is the checkpoint's" if has_head else "the masked-LM head is new: train it"

    def _answer(self, x: Any, batch_size: int) -> list[list[list[Candidate]]]:
        return self.fill(x)

    def fill(self, x: Any, top_k: int = 5) -> list[list[list[Candidate]]]:
        """Returns for each text, for each of its [MASK], the `top_k` likeliest pieces, best first."""

        def forward(features: dict[str, Any], training: bool) -> dict[str, Any]:
            return {_LOGITS: self(features, training=training)}

        return [
            fill_mask.fill_mask(forward, self._tokenizer, self.bert_config, text, top_k)
            for text in input_adapters.as_texts(x)
        ]
