"""Shuffles all instances of a corpus with little memory.

Each instance gets a random key of 64 bits. Each block of instances is sorted by key and written to disk. The range of
keys is divided into buckets that fit into memory. Each bucket is collected from all blocks, sorted and written out. The
result is a uniform shuffle: the instances are in the order of their keys, whichever process made which block.

On disk, an instance with its key is a row, an element of a NumPy structured array (see `Layout.row`).
"""

import dataclasses
import os

import numpy as np

from data_gen.rules.instances import InstanceConfig
from data_gen.rules.random_numbers import Random
from data_gen.rules.vectorized_instances import Instances
from official_bert.data import record_schema
from official_bert.utils import files


@dataclasses.dataclass(frozen=True)
class Layout:
    """The sizes that determine the format of instances on disk.

    Attributes:
        max_seq_length: Number of positions of an instance.
        max_predictions_per_seq: Maximum number of predictions of an instance.
        ids: Data type of the token ids.
        buckets: Number of buckets of all shards.
    """

    max_seq_length: int
    max_predictions_per_seq: int
    ids: np.dtype
    buckets: int

    @property
    def row(self) -> np.dtype:
        """The structured data type of one instance with its key."""
        positions, limit = (self.max_seq_length,), (self.max_predictions_per_seq,)
        arrays = [("ids", self.ids, positions), ("labels", self.ids, limit), ("positions", "<u2", limit)]
        numbers = [("length", "<u2"), ("first_length", "<u2"), ("predictions", "<u2"), ("is_random_next", "u1")]
        return np.dtype([("key", "<u8"), *arrays, *numbers])

    def find_bucket_starts(self, keys: np.ndarray) -> np.ndarray:
        """Returns where each bucket starts in an array of sorted keys, followed by the number of keys [buckets + 1]."""
        firsts = [(2**64 * bucket) // self.buckets for bucket in range(self.buckets)]
        return np.append(np.searchsorted(keys, np.array(firsts, np.uint64)), len(keys)).astype("<i8")


def sort_by_random_keys(instances: Instances, random: Random) -> np.ndarray:
    """Draws a random key for each instance of a block. Returns the instances as rows, sorted by key."""
    keys = random.raw(len(instances.length))
    order = np.argsort(keys, kind="stable")
    rows = select_rows(instances, order)
    rows["key"] = keys[order]
    return rows


def spool(path: str, rows: np.ndarray, layout: Layout) -> None:
    """Writes a block's rows to a file, atomically. Before the rows, the file has the index at which each bucket starts.

    Args:
        path: The file.
        rows: Rows sorted by key.
        layout: The format of the rows and the number of buckets.
    """
    starts = layout.find_bucket_starts(rows["key"])
    with files.write_atomically(path) as temporary, open(temporary, "wb") as writer:
        writer.write(starts.data)
        writer.write(rows.data)


def select_rows(instances: Instances, which: np.ndarray | slice) -> np.ndarray:
    """Converts the instances with the indices `which` to rows. Their keys are 0."""
    layout = Layout(instances.ids.shape[1], instances.labels.shape[1], instances.ids.dtype, 1)
    rows = np.zeros(len(instances.length[which]), layout.row)
    for name in layout.row.names or ():
        if name != "key":
            rows[name] = getattr(instances, name)[which]
    return rows


def collect_bucket(paths: list[str], bucket: int, layout: Layout) -> np.ndarray:
    """Reads the rows of a bucket from the files of all blocks and sorts them by key.

    Rows with equal keys are in the order of the blocks.
    """
    parts = []
    header = 8 * (layout.buckets + 1)
    for path in paths:
        with open(path, "rb", buffering=0) as block:
            first, last = np.frombuffer(os.pread(block.fileno(), 16, 8 * bucket), "<i8").tolist()
            begin, size = header + first * layout.row.itemsize, (last - first) * layout.row.itemsize
            parts.append(np.frombuffer(os.pread(block.fileno(), size, begin), layout.row))
    rows = np.concatenate(parts)
    return rows[np.argsort(rows["key"], kind="stable")]


def make_schema(config: InstanceConfig) -> dict[str, record_schema.Feature]:
    """Returns the schema of the records: the shape and type of each feature, by name."""
    if not config.max_predictions_per_seq:
        return record_schema.unmasked_schema(config.max_seq_length)
    return record_schema.pretraining_schema(config.max_seq_length, config.max_predictions_per_seq)


def make_features(rows: np.ndarray) -> dict[str, np.ndarray]:
    """Converts rows to the features of records, by name. In unmasked records, features of predictions have size 0."""
    position = np.arange(rows["ids"].shape[1])[None, :]
    mask = position < rows["length"][:, None]
    slots = np.arange(rows["labels"].shape[1])[None, :]
    return {
        "input_ids": rows["ids"],
        "input_mask": mask.astype(np.uint8),
        "segment_ids": (mask & (position >= rows["first_length"][:, None])).astype(np.uint8),
        "masked_lm_positions": rows["positions"],
        "masked_lm_ids": rows["labels"],
        "masked_lm_weights": (slots < rows["predictions"][:, None]).astype(np.float32),
        "next_sentence_labels": rows["is_random_next"][:, None],
    }


def count_statistics(instances: Instances) -> dict[str, int]:
    """Returns sums over instances, by the name that manifests use.

    - instances: Number of records.
    - positions: Number of records times max_seq_length.
    - tokens: Number of positions that are not padding.
    - maskable: Number of tokens other than [CLS] and [SEP].
    - sequential: Number of tokens of text outside of random second segments. Each pass over the text yields every token
      once, except the tokens that truncation removes.
    - predictions: Number of predicted tokens.
    - random_next: Number of records whose second segment is random (label 1).
    """
    text = instances.length - instances.special
    return {
        "instances": len(instances.length),
        "positions": instances.ids.size,
        "tokens": int(instances.length.sum()),
        "maskable": int(text.sum()),
        "sequential": int(np.where(instances.is_random_next, instances.first_length - 2, text).sum()),
        "predictions": int(instances.predictions.sum()),
        "random_next": int(instances.is_random_next.sum()),
    }
