"""What a model takes and gives, as clients see it: names, types and shapes, by TensorFlow's names."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

Tensors = dict[str, np.ndarray]

STRING, BOOL = "string", "bool"


@dataclasses.dataclass(frozen=True)
class Tensor:
    """The type and shape of an input or output, the instances first.

    Attributes:
        dtype: TensorFlow's name of the type, as "string" or "int32".
        shape: None for sizes that are free; None altogether where the number of dimensions is.
    """

    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def is_integer(self) -> bool:
        """Whether it holds whole numbers that NumPy has a type for."""
        return self._kind in ("i", "u")

    @property
    def is_floating(self) -> bool:
        """Whether it holds other numbers."""
        return self._kind == "f" or self.dtype == "bfloat16"

    @property
    def numpy_type(self) -> Any:
        """NumPy's type; for bfloat16, which it has not, the next wider one."""
        return object if self.dtype == STRING else np.dtype("float32" if self.dtype == "bfloat16" else self.dtype)

    @property
    def range(self) -> tuple[int, int]:
        """The least and the greatest whole number."""
        limits = np.iinfo(self.numpy_type)
        return int(limits.min), int(limits.max)

    @property
    def _kind(self) -> str:
        try:
            return np.dtype(self.dtype).kind
        except TypeError:  # a type of TensorFlow alone
            return ""


@dataclasses.dataclass(frozen=True)
class Signature:
    """Inputs and outputs by name."""

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    @property
    def takes_rows(self) -> bool:
        """Whether all inputs have a first dimension for instances."""
        return bool(self.inputs) and all(tensor.shape for tensor in self.inputs.values())

    @property
    def takes_texts_alone(self) -> bool:
        """Whether all inputs are strings."""
        return all(tensor.dtype == STRING for tensor in self.inputs.values())
