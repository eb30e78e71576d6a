"""What a checkpoint format is: how its files are recognized, read and written, and the framework they are from."""

import dataclasses
import functools
import importlib.util
import os
from collections.abc import Callable, Mapping

from official_bert.checkpoints import bundle
from official_bert.checkpoints.checkpoint import Array, LoadedModel, LoadOverrides
from official_bert.checkpoints.tensors import Source
from official_bert.errors import UserError
from official_bert.utils import files


@dataclasses.dataclass(frozen=True)
class CheckpointPath:
    """A path whose format is sought: a folder, a checkpoint's file, or a TensorFlow checkpoint without .index."""

    path: str

    def has(self, name: str) -> bool:
        """Whether the path is a file of that name, or a folder with one."""
        return os.path.basename(self.path) == name or files.exists(os.path.join(self.path, name))

    @property
    def folder(self) -> str:
        """The folder, or that of the file."""
        return self.path if files.is_folder(self.path) else os.path.dirname(self.path)

    @functools.cached_property
    def bundle(self) -> Source | UserError:
        """The TensorFlow checkpoint at the path, or why there is none that can be read."""
        try:
            return bundle.open_bundle(bundle.find_prefix(self.path))
        except UserError as error:
            return error


@dataclasses.dataclass(frozen=True)
class Framework:
    """The framework that a format is from, which computes with its files.

    Attributes:
        title: for messages.
        packages: what must be installed.
        outputs: computes outputs, by the names of `parity.compute_outputs`, from the checkpoint, its folder and input
            features, as of `parity.make_fixed_input`.
    """

    title: str
    packages: tuple[str, ...]
    outputs: Callable[[LoadedModel, str, Mapping[str, Array]], dict[str, Array]]

    def is_installed(self) -> bool:
        """Whether all of its packages are there."""
        return all(importlib.util.find_spec(package) is not None for package in self.packages)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """A checkpoint format.

    Attributes:
        name: as in --to_format.
        title: for messages.
        detect: whether a path holds this format.
        read: reads a checkpoint from a path.
        write: writes a checkpoint into a folder and returns what was written, which is less than it received where the
            format cannot hold a head; None for a format that is only read.
        holds_optimizer: whether it can hold the optimizer's moments and the step.
        holds_config: whether it always has a configuration of its own, so that --bert_config_file is refused.
        framework: which computes with its files, to compare with; None for none.
    """

    name: str
    title: str
    detect: Callable[[CheckpointPath], bool]
    read: Callable[[str, LoadOverrides], LoadedModel]
    write: Callable[[LoadedModel, str], LoadedModel] | None = None
    holds_optimizer: bool = False
    holds_config: bool = False
    framework: Framework | None = None
