"""A traced function with its variables made arguments and results: XLA then needs no device that holds them."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class _Held:
    """A variable's value at this point of the function."""

    def __init__(self, value: Any) -> None:
        self.value = value


def without_variables(graph: Any, arguments: Sequence[tf.Tensor], values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Repeats a traced function in the graph of the caller, on other tensors.

    Args:
        graph: that of a concrete function; what it captures is variables alone.
        arguments: what stands for its tensors, in the order of graph.inputs.
        values: what its variables hold, in the order of graph.inputs.

    Returns:
        The function's results, then what the variables hold in the end.

    Raises:
        NotImplementedError: an operation on variables that is not known here.
    """
    plain, held = iter(arguments), [_Held(value) for value in values]
    variables = iter(held)
    inputs = [next(variables) if tensor.dtype == tf.resource else next(plain) for tensor in graph.inputs]
    return [*_repeat(graph, inputs), *(variable.value for variable in held)]


def _repeat(graph: Any, inputs: Sequence[Any]) -> list[Any]:
    """Repeats the operations in the order in which they were made, which is that of reading and assigning."""
    known = {tensor.ref(): value for tensor, value in zip(graph.inputs, inputs, strict=True)}
    for operation in graph.get_operations():
        if operation.type in ("Placeholder", "NoOp", "Assert"):
            continue
        results = _repeat_operation(operation, [known[tensor.ref()] for tensor in operation.inputs])
        known.update((tensor.ref(), value) for tensor, value in zip(operation.outputs, results, strict=True))
    return [known[tensor.ref()] for tensor in graph.outputs]


def _repeat_operation(operation: Any, given: list[Any]) -> Sequence[Any]:
    kind = operation.type
    if kind in ("PartitionedCall", "StatefulPartitionedCall"):
        return _repeat(_function(operation, "f"), given)
    if kind in ("While", "StatelessWhile"):
        return _repeat_loop(operation, given)
    if kind in ("If", "StatelessIf"):
        return _repeat_choice(operation, given)
    if not any(isinstance(value, _Held) for value in given):
        attributes = {name: value for name, value in operation.node_def.attr.items() if not name.startswith("_")}
        types = [tensor.dtype for tensor in operation.outputs]
        graph = tf.compat.v1.get_default_graph()
        return graph.create_op(kind, given, types, name=operation.name, attrs=attributes).outputs
    variable, *others = given
    if kind == "Identity":
        return [variable]
    if kind == "ReadVariableOp":
        return [variable.value]
    if kind == "ResourceGather":
        return [tf.gather(variable.value, others[0], batch_dims=operation.get_attr("batch_dims"))]
    if kind == "AssignVariableOp":
        variable.value = others[0]
    elif kind == "AssignAddVariableOp":
        variable.value += others[0]
    elif kind == "AssignSubVariableOp":
        variable.value -= others[0]
    else:
        raise NotImplementedError(f"{kind} ({operation.name}) on a variable")
    return []


def _function(operation: Any, attribute: str) -> Any:
    return operation.graph._get_function(operation.get_attr(attribute).name).graph


def _repeat_loop(operation: Any, given: list[Any]) -> list[Any]:
    state, repeat = _as_state(given)
    test, body = _function(operation, "cond"), _function(operation, "body")
    after = tf.while_loop(lambda *now: repeat(test, now)[0], lambda *now: repeat(body, now), state)
    return _from_state(operation, given, after)


def _repeat_choice(operation: Any, given: list[Any]) -> list[Any]:
    chosen, *inputs = given
    state, repeat = _as_state(inputs)
    yes, no = _function(operation, "then_branch"), _function(operation, "else_branch")
    after = tf.cond(tf.cast(chosen, tf.bool), lambda: repeat(yes, state), lambda: repeat(no, state))
    return _from_state(operation, inputs, after)


def _as_state(given: Sequence[Any]) -> tuple[list[tf.Tensor], Any]:
    """Tensors, then variables' values; and a function that repeats a graph from such a state to the next one."""
    held = [value for value in given if isinstance(value, _Held)]
    plain = [value for value in given if not isinstance(value, _Held)]

    def repeat(graph: Any, state: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        for variable, value in zip(held, state[len(plain) :], strict=True):
            variable.value = value
        tensors = iter(state)
        results = _repeat(graph, [value if isinstance(value, _Held) else next(tensors) for value in given])
        return [value for value in results if not isinstance(value, _Held)] + [variable.value for variable in held]

    return plain + [variable.value for variable in held], repeat


def _from_state(operation: Any, given: Sequence[Any], state: Sequence[tf.Tensor]) -> list[Any]:
    """The operation's results; variables hold what the state says."""
    held = [value for value in given if isinstance(value, _Held)]
    for variable, value in zip(held, state[len(state) - len(held) :], strict=True):
        variable.value = value
    tensors = iter(state)
    # A loop returns the variables it was given, in the same order.
    return [
        given[position] if tensor.dtype == tf.resource else next(tensors)
        for position, tensor in enumerate(operation.outputs)
    ]
