"""Optimizers, learning rates, the loss scale, and the distribution strategies that they work under.

Imports utils alone. The two training packages and checkpoints (for the optimizers' moments) import it.
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
