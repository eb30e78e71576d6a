"""keras.models.clone_model for models that take text: the clone is of the same class.

Keras calls the layers of a functional model anew, and hands what comes of that to the model's class as
(inputs, outputs, name=...) if its constructor takes any arguments; else the clone is a plain functional model.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import keras

_ORIGINAL = "text_model"  # of a symbolic output: the model that gave it


@dataclasses.dataclass(frozen=True)
class Graph:
    """What Keras hands to the constructor of a clone; a tuple or dict as an attribute Keras would change."""

    inputs: Any
    outputs: Any


class Clonable:
    """A functional model whose clones are of its class, made of its configuration and of the layers of the clone."""

    _cloned: Graph | None = None  # that of a clone, until it is built

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if "__init__" in cls.__dict__:
            cls.__init__ = _or_clone(cls.__init__)  # type: ignore[method-assign]

    def _run_through_graph(self, *arguments: Any, **settings: Any) -> Any:
        outputs = super()._run_through_graph(*arguments, **settings)  # type: ignore[misc]
        for output in keras.tree.flatten(outputs):
            if isinstance(output, keras.KerasTensor):
                setattr(output, _ORIGINAL, self)
        return outputs


def _or_clone(init: Callable[..., None]) -> Callable[..., None]:
    """A constructor that also takes what Keras hands to that of a clone; its signature stays."""

    @functools.wraps(init)
    def __init__(self: Any, *arguments: Any, **settings: Any) -> None:  # noqa: N807
        outputs = keras.tree.flatten(arguments[1]) if len(arguments) == 2 else []
        original = getattr(outputs[0], _ORIGINAL, None) if outputs else None
        if original is None:
            init(self, *arguments, **settings)
        else:
            self._cloned = Graph(*arguments)
            init(self, **{**original.get_config(), **settings})

    return __init__
