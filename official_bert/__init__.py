"""BERT (Devlin et al., arXiv:1810.04805) on TensorFlow 2 and Keras 3.

The names in `__all__` are the public interface, documented in docs/guides/python.md. Everything else is private.
Importing the package imports neither TensorFlow nor Keras: each name is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from official_bert.utils import extras, tensorflow_import
from official_bert.version import __version__

if TYPE_CHECKING:
    from official_bert.adaptation.adapting import adapt
    from official_bert.checkpoints.loading import load, load_pretraining_model
    from official_bert.errors import UserError
    from official_bert.inference.feature_extractor import FeatureExtractor
    from official_bert.inference.fill_mask import fill_mask
    from official_bert.keras_models.masked_lm import MaskedLM
    from official_bert.keras_models.multiple_choice import MultipleChoice
    from official_bert.keras_models.question_answerer import QuestionAnswerer
    from official_bert.keras_models.text_classifier import TextClassifier
    from official_bert.keras_models.text_encoder import TextEncoder
    from official_bert.keras_models.text_regressor import TextRegressor
    from official_bert.keras_models.token_tagger import TokenTagger
    from official_bert.kinds.classification.model import build_classifier
    from official_bert.kinds.multiple_choice.model import build_multiple_choice_model
    from official_bert.kinds.question_answering.model import build_span_predictor
    from official_bert.kinds.regression.model import build_regressor
    from official_bert.kinds.tagging.model import build_token_tagger
    from official_bert.modeling.config import BertConfig
    from official_bert.modeling.encoder import build_encoder
    from official_bert.modeling.pretraining_model import build_pretraining_model, get_encoder
    from official_bert.optimization.optimizers import BertAdamW, Lamb
    from official_bert.optimization.schedules import WarmupPolynomialDecay
    from official_bert.tokenization.exact import FullTokenizer
    from official_bert.tokenization.fast import FastTokenizer

_NAMES = {
    "official_bert.adaptation.adapting": "adapt",
    "official_bert.checkpoints.loading": "load load_pretraining_model",
    "official_bert.errors": "UserError",
    "official_bert.inference.feature_extractor": "FeatureExtractor",
    "official_bert.inference.fill_mask": "fill_mask",
    "official_bert.keras_models.text_classifier": "TextClassifier",
    "official_bert.keras_models.text_regressor": "TextRegressor",
    "official_bert.keras_models.masked_lm": "MaskedLM",
    "official_bert.keras_models.multiple_choice": "MultipleChoice",
    "official_bert.keras_models.question_answerer": "QuestionAnswerer",
    "official_bert.keras_models.token_tagger": "TokenTagger",
    "official_bert.keras_models.text_encoder": "TextEncoder",
    "official_bert.kinds.classification.model": "build_classifier",
    "official_bert.kinds.multiple_choice.model": "build_multiple_choice_model",
    "official_bert.kinds.question_answering.model": "build_span_predictor",
    "official_bert.kinds.regression.model": "build_regressor",
    "official_bert.kinds.tagging.model": "build_token_tagger",
    "official_bert.modeling.config": "BertConfig",
    "official_bert.modeling.encoder": "build_encoder",
    "official_bert.modeling.pretraining_model": "build_pretraining_model get_encoder",
    "official_bert.optimization.optimizers": "BertAdamW Lamb",
    "official_bert.optimization.schedules": "WarmupPolynomialDecay",
    "official_bert.tokenization.exact": "FullTokenizer",
    "official_bert.tokenization.fast": "FastTokenizer",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "BertAdamW", "BertConfig", "FastTokenizer", "FeatureExtractor", "FullTokenizer", "Lamb", "MaskedLM",
    "MultipleChoice", "QuestionAnswerer", "TextClassifier", "TextEncoder", "TextRegressor", "TokenTagger",
    "UserError", "WarmupPolynomialDecay", "__version__", "adapt", "build_classifier", "build_encoder",
    "build_multiple_choice_model", "build_pretraining_model", "build_regressor", "build_span_predictor",
    "build_token_tagger", "fill_mask", "get_encoder", "load", "load_pretraining_model",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'official_bert' has no attribute {name!r}")
    try:
        with tensorflow_import.hide_startup_messages():
            value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    except ModuleNotFoundError as error:
        raise extras.explain_missing_package(error, "finetune") or error from error
    globals()[name] = value  # so that the next use costs nothing
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
