"""Optimizers, learning rates, the loss scale, and the distribution strategies that they work under.

Imported by checkpoints (for the optimizers' moments), finetuning, keras_models, pretraining and tpu_check.
"""

from official_bert.utils.deprecation import moved

_OPTIMIZERS = "official_bert.optimization.optimizers"

__getattr__ = moved(
    __name__,
    {
        "BertAdamW": _OPTIMIZERS,
        "KerasAdamW": _OPTIMIZERS,
        "Lamb": _OPTIMIZERS,
        "WarmupPolynomialDecay": "official_bert.optimization.schedules",
        "get_optimizer": _OPTIMIZERS,
    },
)
