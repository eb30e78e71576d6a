"""What the server needs of a model, whatever computes it; and how one is loaded."""

import dataclasses
import itertools
import os
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

from official_bert.errors import UserError
from official_bert.inference import exports, replays
from official_bert.serving.signatures import Signature, Tensors
from official_bert.utils import extras, files

# Batches that are computed at a time, by all models.
PARALLEL_BATCHES = 2


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """Instances of a request that are ready to be computed, row by row.

    Attributes:
        signature: The signature that is asked.
        instances: Number of instances.
        content: What the model computes.
        tokens: Number of tokens of each row.
        group: Rows of one group may share a batch. None for a row that is computed by itself.
    """

    signature: str
    instances: int
    content: Any
    tokens: list[int]
    group: Hashable


Row = tuple[Prepared, int]  # with its number


class ServedModel(Protocol):
    """One version of a model that has been loaded. Its methods may be called by several threads.

    Attributes:
        signatures: what it answers to, by name.
        export_metadata: what the export says of itself; empty for a SavedModel that another tool wrote.
        takes_even_time: whether texts of one length take about the same time whenever they come. TensorFlow prepares
            itself anew for sizes that it has not seen.
        quick_bytes: Number of bytes of text for which `prepare` and `finish` take little time.
        parallel_batches: how many batches at a time are computed fastest, at most PARALLEL_BATCHES.
    """

    signatures: dict[str, Signature]
    export_metadata: dict[str, Any]
    takes_even_time: bool
    quick_bytes: int
    parallel_batches: int

    @property
    def kind(self) -> str:
        """What the model does: classification, fill_mask, ...; "other" where it does not say."""

    def divides(self, signature: str) -> bool:
        """Returns whether the instances of a request may be computed apart, and with those of other requests."""

    def prepare(self, signature: str, inputs: Tensors) -> list[Prepared]:
        """Returns inputs of the right types and shapes, [B, ...], ready to be computed."""

    def compute(self, rows: Sequence[Row]) -> list[Any]:
        """Returns the outputs of rows of one group.

        Raises:
            RefusedTextsError: the model refuses one of them.
        """

    def finish(self, prepared: Prepared, outputs: Sequence[Any]) -> Tensors:
        """Returns the answers to instances, [B, ...], from the outputs of their rows."""

    def metadata(self) -> Mapping[str, Any]:
        """Returns the signatures in TensorFlow Serving's JSON."""

    def warm_up(self, max_batch_size: int) -> None:
        """Runs a few requests, so that the first one to come is not slow.

        Raises:
            UserError: the model cannot answer them as it should.
        """


def load(folder: str, threads: int | None) -> ServedModel:
    """Loads the model of a version's folder; one for ONNX Runtime without importing TensorFlow.

    Args:
        folder: of the version.
        threads: by how many a batch is computed; None for one on each core.

    Raises:
        UserError: it cannot be loaded.
    """
    if exports.is_onnx(folder):
        from official_bert.serving.onnx_model import OnnxServedModel

        return OnnxServedModel(folder, threads)
    try:
        from official_bert.serving.saved_model import SavedModel
    except ModuleNotFoundError as error:
        raise extras.missing(error, "serve") or error from error
    return SavedModel(folder)


def check_replay(folder: str, model: Any) -> None:
    """Compares the answers of a version that has been loaded with those of its replay file, if it has one.

    Args:
        folder: The version's folder.
        model: Has the names of its `inputs`, and gives `answers` to texts by input.

    Raises:
        UserError: An answer differs by more than rounding.
    """
    path = os.path.join(folder, exports.REPLAY_FILE)
    if not files.exists(path):
        return
    replay = replays.read(folder)
    some = replay.rows()[: replays.TOGETHER]
    if some and some[0].keys() != set(model.inputs):
        raise UserError(
            f"{path} has the texts {list(some[0])}; the model takes {list(model.inputs)}; make the export anew"
        )
    alone, together = replays.ask(model, some)
    different = (replay.differences(alone, "the model"), replay.differences(together, "the model, of several texts,"))
    for difference in itertools.chain(*different):
        raise UserError(f"{path} does not fit the model, {difference}; make the export anew")
