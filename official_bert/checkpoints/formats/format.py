"""What a checkpoint format consists of: functions that detect, read and write its files, and a matching framework."""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence

from official_bert.checkpoints import bundle
from official_bert.checkpoints.checkpoint import Array, LoadedModel, LoadOverrides
from official_bert.checkpoints.tensors import TensorFile
from official_bert.errors import UserError
from official_bert.utils import files


@dataclasses.dataclass(frozen=True)
class CheckpointPath:
    """A path that may hold a checkpoint: a folder, a file in it, or a TensorFlow checkpoint's path without .index."""

    path: str

    def has(self, name: str) -> bool:
        """Returns whether the path is a file called `name`, or a folder that contains such a file."""
        return os.path.basename(self.path) == name or files.exists(os.path.join(self.path, name))

    @property
    def folder(self) -> str:
        """The path itself if it is a folder, or else the folder that contains it."""
        return self.path if files.is_folder(self.path) else os.path.dirname(self.path)

    @functools.cached_property
    def bundle(self) -> TensorFile | UserError:
        """The TensorFlow checkpoint at the path, opened, or the error that explains why it cannot be opened."""
        try:
            return bundle.open_bundle(bundle.find_prefix(self.path))
        except UserError as error:
            return error

    def open_bundle(self) -> TensorFile:
        """Returns the opened TensorFlow checkpoint at a path whose format has been detected by its tensors."""
        assert isinstance(self.bundle, TensorFile)
        return self.bundle

    def has_tensor(self, name: str) -> bool:
        """Returns whether the path is a TensorFlow checkpoint that contains a tensor called `name`."""
        return isinstance(self.bundle, TensorFile) and name in self.bundle.shapes


class UnreadableWeightsError(Exception):
    """The framework cannot read the weights in a folder, because their format or their names differ from its own."""


@dataclasses.dataclass(frozen=True)
class Framework:
    """Another library that can run the models in a format's files, to compare our outputs with.

    Attributes:
        title: The name for messages.
        outputs: Function (checkpoint, folder, features) that runs the model in the folder with the framework. It
            returns output arrays under the names that `parity.compute_outputs` uses. `features` is like the result of
            `parity.make_fixed_input`. May raise an UnreadableWeightsError.
        encode: Function (folder, texts) that returns each text's token ids, without [CLS] and [SEP], from the
            framework's tokenizer. None if tokenizers are not compared.
    """

    title: str
    outputs: Callable[[LoadedModel, str, Mapping[str, Array]], dict[str, Array]]
    encode: Callable[[str, Sequence[str]], list[list[int]]] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """A checkpoint format.

    Attributes:
        name: The name that users pass as --to_format.
        title: The name in messages.
        detect: Function that returns whether a path holds this format.
        read: Function that reads the checkpoint at a path, with the user's settings.
        write: Function that writes a model into a folder. It returns the model without what the format cannot store,
            such as some heads. None if the format is read-only.
        holds_optimizer: Whether the format can store Adam's moments and the step.
        holds_config: Whether the format always contains a configuration, so that --bert_config_file is rejected.
        framework: The library to compare the outputs with, or None.
    """

    name: str
    title: str
    detect: Callable[[CheckpointPath], bool]
    read: Callable[[CheckpointPath, LoadOverrides], LoadedModel]
    write: Callable[[LoadedModel, str], LoadedModel] | None = None
    holds_optimizer: bool = False
    holds_config: bool = False
    framework: Framework | None = None
