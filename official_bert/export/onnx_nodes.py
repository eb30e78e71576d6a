"""Collects the nodes and constants of an ONNX graph."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
from onnx import helper, numpy_helper

FUSED = "com.microsoft"  # The domain of ONNX Runtime's own operations.


class Graph:
    """Collects the nodes and constants of an ONNX graph. Methods that add one return the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.variables: set[str] = set()  # The paths of the variables that `read` has returned.
        self._names: set[str] = set()

    def read(self, variable: keras.Variable) -> npt.NDArray[Any]:
        """Returns the value of a variable of the model, which becomes a constant of the graph, or a part of one."""
        self.variables.add(variable.path)
        return keras.ops.convert_to_numpy(variable)

    def constant(self, name: str, value: Any, dtype: Any = np.float32) -> str:
        """Adds a constant, unless a constant of this name exists. Returns the name."""
        if name not in self._names:
            self._names.add(name)
            self.initializers.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def numbers(self, *values: int) -> str:
        """Adds an int64 vector, such as a shape or axes, and returns its name."""
        return self.constant(f"numbers/{','.join(map(str, values))}", values, np.int64)

    def node(
        self, operation: str, inputs: Sequence[str], name: str, domain: str = "", output: str = "", **attributes: Any
    ) -> str:
        """Adds a node and returns the name of its output.

        Args:
            operation: The ONNX operation.
            inputs: Names of the inputs.
            name: Name of the node. A number is appended if it is taken.
            domain: Domain of the operation. "" is ONNX's own.
            output: Name of the output. Defaults to a name derived from the node's.
            **attributes: Attributes of the node.
        """
        name = self._make_unique_name(name)
        output = output or f"{name}:0"
        self.nodes.append(helper.make_node(operation, inputs, [output], name=name, domain=domain, **attributes))
        return output

    def fused(self, operation: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """Adds a node with an operation of ONNX Runtime's own domain, and returns the name of its output."""
        return self.node(operation, inputs, name, FUSED, **attributes)

    def _make_unique_name(self, name: str) -> str:
        number, free = 1, name
        while free in self._names:
            number, free = number + 1, f"{name}_{number}"
        self._names.add(free)
        return free
