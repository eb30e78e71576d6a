"""A Keras model that predicts masked tokens, and can continue pre-training on texts.

B texts, P masked positions per text, V vocabulary size
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from official_bert.checkpoints.loading import ModelAndTokenizer
from official_bert.data.dynamic_masking import DynamicMasking
from official_bert.errors import UserError
from official_bert.inference import fill_mask
from official_bert.inference.fill_mask import Candidate
from official_bert.keras_models.fitting_model import FittingModel
from official_bert.kinds import input_adapters, text_spec
from official_bert.kinds.features import NO_LABEL, Array, Features
from official_bert.kinds.model import TokenKindModel
from official_bert.kinds.names import FILL_MASK
from official_bert.kinds.spec import UNSTORED, KindSpec
from official_bert.kinds.text_spec import TextExample
from official_bert.modeling.config import BertConfig
from official_bert.modeling.pretraining_model import build_pretraining_model, get_encoder
from official_bert.tokenization.exact import FullTokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLMSpec(KindSpec):
    """The KindSpec of masked language modeling on unlabelled texts. Other tokens are masked in each epoch.

    Targets are the ids of the masked tokens, int32 [B, P].

    Attributes:
        masking: Selects the tokens to mask and their replacements.
    """

    kind: ClassVar[str] = FILL_MASK
    needs_labels: ClassVar[bool] = False
    supports_sample_weight: ClassVar[bool] = False

    masking: DynamicMasking = dataclasses.field(metadata=UNSTORED)

    @classmethod
    def model_module(cls) -> str:
        return __name__

    def make_examples(self, x: Any, y: Any) -> list[TextExample]:
        if y is not None:
            raise UserError("MaskedLM masks tokens itself and takes no labels; remove y")
        return [TextExample(str(number), text) for number, text in enumerate(input_adapters.to_texts(x))]

    def featurize(self, examples: Sequence[TextExample], tokenizer: FullTokenizer, max_seq_length: int) -> Features:
        return text_spec.featurize(examples, tokenizer, max_seq_length)

    def randomize_batch(self, batch: tuple[Any, ...], keys: Sequence[int]) -> tuple[Any, ...]:
        ids = {name: tf.constant(each) for name, each in batch[0].items()}
        masked = {name: np.asarray(each) for name, each in self.masking.mask(ids, tf.constant(keys, tf.int64)).items()}
        targets = np.where(masked["masked_lm_weights"] > 0, masked["masked_lm_ids"], NO_LABEL).astype(np.int32)
        names = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")
        return {name: masked[name].astype(np.int32) for name in names}, targets


class Model(TokenKindModel[MaskedLMSpec]):
    """The loss and metrics of masked language modeling. `MaskedLM` builds the layers."""

    def build_head(self, encoder: keras.Model, seed: int | None) -> keras.Model:
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="official_bert")
class MaskedLM(FittingModel):
    """A masked language model (paper, section 3.1, task 1), without the next-sentence objective.

    x contains texts. predict returns the most probable word pieces for each [MASK] in a text. fit needs no labels: it
    masks tokens itself, and different ones in each epoch, as in pre-training with dynamic masking.

    fit does not change the pooler and the next-sentence head of the checkpoint. save and save_checkpoint write them, so
    that later fine-tuning can use them.

    Args:
        config: Sizes of the encoder: a BertConfig or a dict of its fields.
        vocab: Contents of the model's vocab.txt.
        masked_lm_prob: Fraction of the tokens that fit masks.
        max_predictions_per_seq: Maximum number of masked tokens per text.
        do_whole_word_mask: Whether to mask all pieces of a word together.
        settings: Other arguments of TextModel.
    """

    spec: MaskedLMSpec
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
        super().__init__(MaskedLMSpec(masking=masking), config, vocab, **settings)
        self.bert_config.require_masked_lm()

    def _build_core(self, dtype: str, seed: int) -> keras.Model:
        whole = build_pretraining_model(self.bert_config, seed=seed, dtype=dtype)
        core = keras.Model(whole.input, whole.output["masked_lm_logits"])
        encoder = get_encoder(whole)
        sequence_output = {"sequence_output": encoder.output["sequence_output"]}  # The model has no pooler of its own.
        self.__dict__["backbone"] = keras.Model(encoder.input, sequence_output, name="encoder")
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

    def _get_own_config(self) -> dict[str, Any]:
        names = ("masked_lm_prob", "max_predictions_per_seq", "do_whole_word_mask")
        return {name: getattr(self.spec.masking, name) for name in names}

    def _head_note(self, has_head: bool) -> str:
        return "the masked-LM head is the checkpoint's" if has_head else "the masked-LM head is new: train it"

    def _answer(self, x: Any, batch_size: int, verbose: Any) -> list[list[list[Candidate]]]:
        return self.fill(x)

    def fill(self, x: Any, top_k: int = 5) -> list[list[list[Candidate]]]:
        """Returns the `top_k` most probable word pieces for each [MASK] of each text, best first.

        The result has a list for each text, with a list of candidates for each [MASK].
        """
        loaded = ModelAndTokenizer(self, self.bert_config, self._tokenizer)
        return fill_mask.fill_masks(loaded, input_adapters.to_texts(x), top_k)
