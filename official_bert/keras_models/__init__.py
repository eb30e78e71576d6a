"""Keras models that take text: fit, evaluate and predict accept strings, and save and export include the tokenizer.

Importing this package registers every class that a .keras file may contain, so that `keras.saving.load_model` finds it.
No other package imports this one: users find its classes in official_bert.
"""

import importlib
import pkgutil

from official_bert.kinds.model import import_models

import_models()
for module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{module.name}")
