"""Reads the texts, labels and weights in a tf.data.Dataset that a user passes to fit, evaluate or predict."""

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from official_bert.data.dataset_options import make_dataset_options
from official_bert.errors import UserError
from official_bert.kinds.spec import KindSpec


def check_texts(data: tf.data.Dataset, head: KindSpec) -> None:
    """Raises a UserError if the elements of a data set are not texts, or (texts, labels) if the task needs labels.

    Args:
        data: The data set.
        head: The spec of the model's task.
    """
    spec, needs_labels = data.element_spec, head.needs_labels
    if needs_labels and (not isinstance(spec, tuple) or len(spec) not in (2, 3)):
        raise UserError("the data set contains no labels; expected tuples (texts, labels) or (texts, labels, weights)")
    if not needs_labels and isinstance(spec, tuple):
        raise UserError(f"the data set contains tuples of {len(spec)}; expected only texts")
    x = spec[0] if isinstance(spec, tuple) else spec
    _check_keys(x, head)
    texts = tf.nest.flatten(x)
    if any(each.dtype != tf.string for each in texts) or len(texts) != 1 + head.pair:
        expected = "two strings, as (first, second)" if head.pair else "a string"
        expected += "; for pairs of texts, create the model with pair=True" if len(texts) == 2 else ""
        raise UserError(f"the data set's texts have the specification {x}; expected {expected}")


def _check_keys(spec: Any, head: KindSpec) -> None:
    """Raises a UserError if texts are a dict (as in make_csv_dataset) whose keys are not the model's text inputs.

    Args:
        spec: The element_spec of the texts.
        head: The spec of the model's task.
    """
    names = head.text_inputs
    if isinstance(spec, Mapping) and set(spec) != set(names):
        columns = ", ".join(f"columns[{key!r}]" for key in list(spec)[: len(names)])
        columns = f"({columns})" if len(names) > 1 else columns
        pairs = ". For pairs of texts, create the model with pair=True" if "text_pair" in spec else ""
        raise UserError(
            f"the data set has the keys {', '.join(map(str, spec))}; expected {' and '.join(names)}. "
            f"Select the texts: data.map(lambda columns, labels: ({columns}, labels)){pairs}"
        )


def _select_texts(x: Any, head: KindSpec) -> Any:
    """Returns the only text column of a dict. Returns texts in another form unchanged."""
    is_single = isinstance(x, Mapping) and len(head.text_inputs) == 1
    return x[head.text_inputs[0]] if is_single else x


def read_batches(data: tf.data.Dataset, head: KindSpec) -> Iterator[tuple[Any, Any, Any]]:
    """Yields texts, labels and sample weights of each batch of a batched data set. None stands for missing ones."""
    for element in data.with_options(make_dataset_options()):
        x, y, weights = (*(element if head.needs_labels else (element,)), None, None)[:3]
        x, y, weights = tf.nest.map_structure(_to_array, (x, y, weights))
        yield _select_texts(x, head), list(zip(*y, strict=True)) if isinstance(y, tuple) else y, weights


def read_texts(data: Any, head: KindSpec) -> Any:
    """Returns the texts of a data set, in its order, without labels. Returns any other `data` unchanged."""
    if not isinstance(data, tf.data.Dataset):
        return data
    spec = data.element_spec
    if isinstance(spec, tuple) and not (head.pair and _are_texts(spec)):
        data = data.map(lambda x, *_: x)
        spec = data.element_spec
    _check_keys(spec, head)
    if _is_batched(data, spec):
        data = data.unbatch()
    rows = list(data.with_options(make_dataset_options()).as_numpy_iterator())
    if isinstance(spec, Mapping):
        return _select_texts({name: [row[name] for row in rows] for name in spec}, head)
    if isinstance(spec, tuple):
        return tuple([row[number] for row in rows] for number in range(len(spec)))
    return rows


def _are_texts(spec: Any) -> bool:
    """Returns whether a tuple of TensorSpecs is a pair of texts, rather than texts with numeric labels."""
    return len(spec) == 2 and all(isinstance(each, tf.TensorSpec) and each.dtype == tf.string for each in spec)


def _is_batched(data: tf.data.Dataset, texts: Any = None) -> bool:
    """Returns whether the elements of a data set are batches of texts."""
    texts = texts or (data.element_spec[0] if isinstance(data.element_spec, tuple) else data.element_spec)
    rank = tf.nest.flatten(texts)[0].shape.rank
    if rank is None:
        raise UserError(
            f"the data set's texts have the specification {texts}; expected a known shape: [] or, in batches, [None]"
        )
    return bool(rank)


def make_batches(data: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
    """Returns a data set of batches. Returns `data` unchanged if it is batched already."""
    return data if _is_batched(data) else data.ragged_batch(batch_size)


def _to_array(values: Any) -> Any:
    """Converts a tensor to a NumPy array, or a ragged tensor to a list. None stays None."""
    if values is None:
        return None
    return values.to_list() if isinstance(values, tf.RaggedTensor) else values.numpy()
