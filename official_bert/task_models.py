"""Moved to official_bert.modeling.task_models; this path goes with the next release."""

from official_bert.utils.deprecation import moved

__getattr__ = moved(
    __name__,
    "official_bert.modeling.task_models",
    {
        "classifier": "build_classifier",
        "multiple_choice": "build_multiple_choice_model",
        "regressor": "build_regressor",
        "span_predictor": "build_span_predictor",
        "token_tagger": "build_token_tagger",
    },
)
