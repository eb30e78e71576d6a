"""Data sets of TensorFlow Datasets, as rows of plain Python values."""

from collections.abc import Iterator
from typing import Any

from official_bert.errors import UserError
from official_bert.utils import tfds_builders

# Its names of the parts, in the order in which they are looked for.
_PARTS = {"train": ("train",), "dev": ("validation", "dev"), "test": ("test",)}


class DataSet:
    """A data set, downloaded and prepared where that was not done before.

    Args:
        name: as TensorFlow Datasets names it, such as glue/sst2.
        data_dir: where it keeps its files; None for its default.

    Attributes:
        name: with the version.

    Raises:
        UserError: there is none of that name, or it cannot be had.
    """

    def __init__(self, name: str, data_dir: str | None) -> None:
        self._builder = tfds_builders.prepared(name, data_dir)
        self.name = str(self._builder.info.full_name)

    def rows(self, split: str) -> Iterator[dict[str, Any]]:
        """Yields the rows of a part, in the stored order.

        Texts are str and classes their names, None where a class is not known (-1); what is made of several values is a
        list or a dict.

        Args:
            split: train, dev or test, or what TensorFlow Datasets takes for one, such as train[:90%].

        Raises:
            UserError: there is no such part.
        """
        import tensorflow_datasets as tfds

        known = self._builder.info.splits
        names = _PARTS.get(split, (split,))
        part = next((name for name in names if name in known), names[0])
        try:
            data = self._builder.as_dataset(split=part, shuffle_files=False)
        except (ValueError, KeyError, AssertionError) as error:
            raise UserError(f"{self.name} has no part {split!r}; expected some of {', '.join(known)}") from error
        features = self._builder.info.features
        for row in tfds.as_numpy(data):
            yield {name: _plain(value, features[name]) for name, value in row.items()}


def _plain(value: Any, feature: Any) -> Any:
    """A value in Python's types; feature is its description in TensorFlow Datasets."""
    if isinstance(value, dict):
        # A sequence of dicts comes as a dict of sequences.
        inner = getattr(feature, "feature", feature)
        return {name: _plain(each, inner[name]) for name, each in value.items()}
    if getattr(value, "ndim", 0):
        return [_plain(each, getattr(feature, "feature", feature)) for each in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if hasattr(feature, "int2str"):
        return feature.int2str(int(value)) if value >= 0 else None
    return value.item()
