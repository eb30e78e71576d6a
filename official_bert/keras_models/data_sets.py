"""Reads the texts, labels and weights in a tf.data.Dataset that a user passes to fit, evaluate or predict."""

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from official_bert.data.dataset_options import make_dataset_options
from official_bert.errors import UserError
from official_bert.kinds.spec import KindSpec


def check_no_other_data(data: Any, **others: Any) -> None:
    """Raises a UserError if other data, such as y, are passed together with a data set.

    Args:
        data: The x of fit or evaluate.
        others: The other arguments by name. None means that an argument was not passed.
    """
    given = [name for name, value in others.items() if value is not None]
    if given and isinstance(data, tf.data.Dataset):
        raise UserError(f"x is a data set and must contain labels and weights; remove {' and '.join(given)}")


def check_texts(data: tf.data.Dataset, spec: KindSpec) -> None:
    """Raises a UserError if the elements of a data set are not texts, or (texts, labels) if the task needs labels.

    Args:
        data: The data set.
        spec: The spec of the model's task.
    """
    element, needs_labels = data.element_spec, spec.needs_labels
    if needs_labels and (not isinstance(element, tuple) or len(element) not in (2, 3)):
        raise UserError("the data set contains no labels; expected tuples (texts, labels) or (texts, labels, weights)")
    if not needs_labels and isinstance(element, tuple):
        raise UserError(f"the data set contains tuples of {len(element)}; expected only texts")
    x = element[0] if isinstance(element, tuple) else element
    _check_keys(x, spec)
    texts = tf.nest.flatten(x)
    if any(each.dtype != tf.string for each in texts) or len(texts) != 1 + spec.pair:
        expected = "two strings, as (first, second)" if spec.pair else "a string"
        expected += "; for pairs of texts, create the model with pair=True" if len(texts) == 2 else ""
        raise UserError(f"the data set's texts have the specification {x}; expected {expected}")


def _check_keys(element: Any, spec: KindSpec) -> None:
    """Raises a UserError if texts are a dict (as in make_csv_dataset) whose keys are not the model's text inputs.

    Args:
        element: The element_spec of the texts.
        spec: The spec of the model's task.
    """
    names = spec.text_inputs
    if isinstance(element, Mapping) and set(element) != set(names):
        columns = ", ".join(f"columns[{key!r}]" for key in list(element)[: len(names)])
        columns = f"({columns})" if len(names) > 1 else columns
        pairs = ". For pairs of texts, create the model with pair=True" if "text_pair" in element else ""
        raise UserError(
            f"the data set has the keys {', '.join(map(str, element))}; expected {' and '.join(names)}. "
            f"Select the texts: data.map(lambda columns, labels: ({columns}, labels)){pairs}"
        )


def _select_texts(x: Any, spec: KindSpec) -> Any:
    """Returns the only text column of a dict. Returns texts in another form unchanged."""
    is_single = isinstance(x, Mapping) and len(spec.text_inputs) == 1
    return x[spec.text_inputs[0]] if is_single else x


def read_batches(data: tf.data.Dataset, spec: KindSpec) -> Iterator[tuple[Any, Any, Any]]:
    """Yields texts, labels and sample weights of each batch of a batched data set. Missing ones are None."""
    for element in data.with_options(make_dataset_options()):
        x, y, weights = (*(element if spec.needs_labels else (element,)), None, None)[:3]
        x, y, weights = tf.nest.map_structure(_to_array, (x, y, weights))
        yield _select_texts(x, spec), list(zip(*y, strict=True)) if isinstance(y, tuple) else y, weights


def read_texts(data: Any, spec: KindSpec) -> Any:
    """Returns the texts of a data set, in its order, without labels. Returns any other `data` unchanged."""
    if not isinstance(data, tf.data.Dataset):
        return data
    element = data.element_spec
    if isinstance(element, tuple) and not (spec.pair and _are_texts(element)):
        data = data.map(lambda x, *_: x)
        element = data.element_spec
    _check_keys(element, spec)
    if _is_batched(data, element):
        data = data.unbatch()
    rows = list(data.with_options(make_dataset_options()).as_numpy_iterator())
    if isinstance(element, Mapping):
        return _select_texts({name: [row[name] for row in rows] for name in element}, spec)
    if isinstance(element, tuple):
        return tuple([row[number] for row in rows] for number in range(len(element)))
    return rows


def _are_texts(element: Any) -> bool:
    """Returns whether a tuple of TensorSpecs is a pair of texts, rather than texts with numeric labels."""
    return len(element) == 2 and all(isinstance(each, tf.TensorSpec) and each.dtype == tf.string for each in element)


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
