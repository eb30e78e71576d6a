"""Constructor arguments as attributes of a model, which act when they are set or cannot be set."""

import inspect
from typing import Any

_OF_KERAS = ("name", "trainable", "dtype")


class ReadOnly:
    """An attribute that the constructor sets, or that the model's configuration holds, and nobody can change.

    Args:
        name: The argument's name.
        is_stored: Whether the constructor assigns it. Otherwise it is read from the configuration.
    """

    def __init__(self, name: str, is_stored: bool = False) -> None:
        self._name, self._is_stored = name, is_stored

    def __get__(self, model: Any, owner: type | None = None) -> Any:
        if model is None:
            return self
        if not self._is_stored:
            return model.get_config().get(self._name)
        if self._name not in vars(model):
            raise AttributeError(self._name)
        return vars(model)[self._name]

    def __set__(self, model: Any, value: Any) -> None:
        if not self._is_stored or self._name in vars(model):
            kind = type(model).__name__
            raise AttributeError(f"{self._name} is fixed when the model is built; pass {self._name}= to {kind}")
        vars(model)[self._name] = value


def make_read_only(model_class: type) -> None:
    """Makes the class's keyword arguments readable if they are not attributes yet."""
    for name, parameter in inspect.signature(model_class.__init__).parameters.items():  # type: ignore[misc]
        if parameter.kind is parameter.KEYWORD_ONLY and name not in _OF_KERAS and not hasattr(model_class, name):
            setattr(model_class, name, ReadOnly(name))
