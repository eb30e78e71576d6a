"""A checkpoint format: how its files are recognized, read and written, and the framework that they belong to."""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence

from official_bert.checkpoints import bundle
from official_bert.checkpoints.checkpoint import Array, LoadedModel, LoadOverrides
from official_bert.checkpoints.tensors import Source
from official_bert.errors import UserError
from official_bert.utils import files


@dataclasses.dataclass(frozen=True)
class CheckpointPath:
    """The path of a checkpoint: a folder, one of the files, or a TensorFlow checkpoint without .index."""

    path: str

    def has(self, name: str) -> bool:
        """Returns whether the path is a file of that name, or a folder that contains one."""
        return os.path.basename(self.path) == name or files.exists(os.path.join(self.path, name))

    @property
    def folder(self) -> str:
        """The folder, or the folder of the file."""
        return self.path if files.is_folder(self.path) else os.path.dirname(self.path)

    @functools.cached_property
    def bundle(self) -> Source | UserError:
        """The TensorFlow checkpoint at the path, or the reason why it cannot be opened."""
        try:
            return bundle.open_bundle(bundle.find_prefix(self.path))
        except UserError as error:
            return error

    def open_bundle(self) -> Source:
        """Returns the TensorFlow checkpoint at the path.

        Raises:
            UserError: If it is missing or damaged.
        """
        if isinstance(self.bundle, UserError):
            raise self.bundle
        return self.bundle

    def has_tensor(self, name: str) -> bool:
        """Returns whether the path is a TensorFlow checkpoint that contains a tensor."""
        return isinstance(self.bundle, Source) and name in self.bundle.shapes


@dataclasses.dataclass(frozen=True)
class Framework:
    """The framework that a format belongs to, which can run the models in its files.

    Attributes:
        title: The name for messages.
        outputs: Computes outputs, with the names of `parity.compute_outputs`, from the checkpoint, its folder and input
            features such as `parity.make_fixed_input` returns.
        encode: Returns the ids of texts without [CLS] and [SEP], from the tokenizer in a folder. None if the
            framework's tokenizer is not compared.
    """

    title: str
    outputs: Callable[[LoadedModel, str, Mapping[str, Array]], dict[str, Array]]
    encode: Callable[[str, Sequence[str]], list[list[int]]] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """A checkpoint format.

    Attributes:
        name: The name, as in --to_format.
        title: The name for messages.
        detect: Returns whether a path holds this format.
        read: Reads a checkpoint.
        write: Writes a checkpoint into a folder and returns what was written, which lacks the parts that the format
            cannot store. Formats without it are read-only.
        holds_optimizer: Whether the format can store the optimizer's moments and the step.
        holds_config: Whether the format always contains a configuration, so that --bert_config_file is rejected.
        framework: The framework to compare conversions with, or None.
    """

    name: str
    title: str
    detect: Callable[[CheckpointPath], bool]
    read: Callable[[CheckpointPath, LoadOverrides], LoadedModel]
    write: Callable[[LoadedModel, str], LoadedModel] | None = None
    holds_optimizer: bool = False
    holds_config: bool = False
    framework: Framework | None = None
