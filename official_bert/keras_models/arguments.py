"""Makes the constructor arguments of models available as read-only attributes."""

import inspect
import itertools
from collections.abc import Collection
from typing import Any

import keras

from official_bert.utils.counting import refuse_unknown

_KERAS_ARGUMENTS = ("name", "trainable", "dtype")
# Names in other libraries.
_OTHER_NAMES = dict.fromkeys(("max_length", "max_len", "sequence_length"), "max_seq_length")


class ReadOnly:
    """A descriptor for an attribute that only the constructor can set, in the `__dict__` of the model.

    If the constructor does not set it there, its value comes from get_config.

    Args:
        name: Name of the constructor argument.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, model: Any, owner: type | None = None) -> Any:
        if model is None:
            return self
        return vars(model)[self._name] if self._name in vars(model) else model.get_config().get(self._name)

    def __set__(self, model: Any, value: Any) -> None:
        kind = type(model).__name__
        raise AttributeError(f"{self._name} cannot be changed after construction; pass {self._name}= to {kind}")


def list_arguments(model_class: type) -> list[str]:
    """Returns the keyword-only constructor arguments of a model class and its base classes, except Keras' own."""
    parameters = [
        parameter
        for each in itertools.takewhile(lambda each: each is not keras.Model, model_class.__mro__)
        for parameter in inspect.signature(each.__init__).parameters.values()  # type: ignore[misc]
    ]
    return [each.name for each in parameters if each.kind is each.KEYWORD_ONLY and each.name not in _KERAS_ARGUMENTS]


def check_no_unknown(model_class: type, unknown: Collection[str]) -> None:
    """Raises a UserError with the valid arguments of a model class if `unknown` contains the name of an argument."""
    refuse_unknown(model_class.__name__, unknown, {*list_arguments(model_class), *_KERAS_ARGUMENTS}, _OTHER_NAMES)


def make_read_only(model_class: type) -> None:
    """Adds a ReadOnly attribute to a class for each of its arguments that is not an attribute yet."""
    for name in list_arguments(model_class):
        if not hasattr(model_class, name):
            setattr(model_class, name, ReadOnly(name))
