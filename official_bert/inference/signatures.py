"""The signatures of a model: names, types and shapes of inputs and outputs, in TensorFlow's terms."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

STRING, BOOL = "string", "bool"


@dataclasses.dataclass(frozen=True)
class Tensor:
    """The type and shape of an input or output. The first dimension is for the instances.

    Attributes:
        dtype: TensorFlow's name of the type, such as "string" or "int32".
        shape: None for a dimension of any size, or for a tensor of any number of dimensions.
    """

    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def is_integer(self) -> bool:
        """Whether it contains integers of a type that NumPy has too."""
        return self._kind in ("i", "u")

    @property
    def is_floating(self) -> bool:
        """Whether it contains floating-point numbers."""
        return self._kind == "f" or self.dtype == "bfloat16"

    @property
    def numpy_type(self) -> Any:
        """NumPy's type, which is float32 for bfloat16."""
        return object if self.dtype == STRING else np.dtype("float32" if self.dtype == "bfloat16" else self.dtype)

    @property
    def range(self) -> tuple[int, int]:
        """The smallest and the largest integer."""
        limits = np.iinfo(self.numpy_type)
        return int(limits.min), int(limits.max)

    def describe(self, name: str) -> dict[str, Any]:
        """Returns TensorFlow Serving's JSON of a tensor with this name."""
        sizes = [{"size": str(-1 if size is None else size), "name": ""} for size in self.shape or ()]
        dtype = "FLOAT" if self.dtype == "float32" else self.dtype.upper()
        return {"dtype": f"DT_{dtype}", "tensor_shape": {"dim": sizes, "unknown_rank": False}, "name": name}

    @property
    def _kind(self) -> str:
        try:
            return np.dtype(self.dtype).kind
        except TypeError:  # a type that only TensorFlow has
            return ""


@dataclasses.dataclass(frozen=True)
class Signature:
    """Inputs and outputs by name."""

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    @property
    def takes_rows(self) -> bool:
        """Whether every input has a dimension for instances."""
        return bool(self.inputs) and all(tensor.shape for tensor in self.inputs.values())

    @property
    def takes_only_texts(self) -> bool:
        """Whether all inputs are strings."""
        return all(tensor.dtype == STRING for tensor in self.inputs.values())
