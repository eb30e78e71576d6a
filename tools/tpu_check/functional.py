"""Converts the variables of a traced function into arguments and results, so that XLA needs no device for them."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class _VariableValue:
    """Replaces a variable while a function is replayed, and holds its current value."""

    def __init__(self, value: Any) -> None:
        self.value = value


def replay_without_variables(
    graph: Any, arguments: Sequence[tf.Tensor], values: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Adds the operations of a traced function to the caller's graph, with tensors in place of its variables.

    Args:
        graph: Graph of a concrete function that captures nothing but variables.
        arguments: The tensors to use as inputs, in the order of graph.inputs.
        values: The initial values of the variables, in the order of graph.inputs.

    Returns:
        The results of the function, followed by the final values of the variables.

    Raises:
        NotImplementedError: If the function has an unsupported operation on variables.
    """
    tensors, variables = iter(arguments), [_VariableValue(value) for value in values]
    remaining = iter(variables)
    inputs = [next(remaining) if tensor.dtype == tf.resource else next(tensors) for tensor in graph.inputs]
    return [*_replay(graph, inputs), *(variable.value for variable in variables)]


def _replay(graph: Any, inputs: Sequence[Any]) -> list[Any]:
    """Replays the operations of a graph in the order of their creation, which is the order of reads and assignments.

    Args:
        graph: The graph.
        inputs: A tensor or _VariableValue for each of graph.inputs.
    """
    known = {tensor.ref(): value for tensor, value in zip(graph.inputs, inputs, strict=True)}
    for operation in graph.get_operations():
        if operation.type in ("Placeholder", "NoOp", "Assert"):
            continue
        results = _replay_operation(operation, [known[tensor.ref()] for tensor in operation.inputs])
        known.update((tensor.ref(), value) for tensor, value in zip(operation.outputs, results, strict=True))
    return [known[tensor.ref()] for tensor in graph.outputs]


def _replay_operation(operation: Any, inputs: list[Any]) -> Sequence[Any]:
    kind = operation.type
    if kind in ("PartitionedCall", "StatefulPartitionedCall"):
        return _replay(_function(operation, "f"), inputs)
    if kind in ("While", "StatelessWhile"):
        return _replay_loop(operation, inputs)
    if kind in ("If", "StatelessIf"):
        return _replay_branch(operation, inputs)
    if not any(isinstance(value, _VariableValue) for value in inputs):
        attributes = {name: value for name, value in operation.node_def.attr.items() if not name.startswith("_")}
        types = [tensor.dtype for tensor in operation.outputs]
        graph = tf.compat.v1.get_default_graph()
        return graph.create_op(kind, inputs, types, name=operation.name, attrs=attributes).outputs
    variable, *others = inputs
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


def _replay_loop(operation: Any, inputs: list[Any]) -> list[Any]:
    state, replay = _pack_state(inputs)
    test, body = _function(operation, "cond"), _function(operation, "body")
    after = tf.while_loop(lambda *now: replay(test, now)[0], lambda *now: replay(body, now), state)
    return _unpack_state(operation, inputs, after)


def _replay_branch(operation: Any, inputs: list[Any]) -> list[Any]:
    chosen, *inputs = inputs
    state, replay = _pack_state(inputs)
    yes, no = _function(operation, "then_branch"), _function(operation, "else_branch")
    after = tf.cond(tf.cast(chosen, tf.bool), lambda: replay(yes, state), lambda: replay(no, state))
    return _unpack_state(operation, inputs, after)


def _pack_state(inputs: Sequence[Any]) -> tuple[list[tf.Tensor], Any]:
    """Converts the inputs of a loop or branch to a list of tensors, its state.

    A state has the tensors among the inputs, followed by the values of the variables.

    Returns:
        The state, and a function (graph, state) that replays a graph and returns the state after it.
    """
    variables = [value for value in inputs if isinstance(value, _VariableValue)]
    plain = [value for value in inputs if not isinstance(value, _VariableValue)]

    def replay(graph: Any, state: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        for variable, value in zip(variables, state[len(plain) :], strict=True):
            variable.value = value
        tensors = iter(state)
        results = _replay(graph, [value if isinstance(value, _VariableValue) else next(tensors) for value in inputs])
        tensors_after = [value for value in results if not isinstance(value, _VariableValue)]
        return tensors_after + [variable.value for variable in variables]

    return plain + [variable.value for variable in variables], replay


def _unpack_state(operation: Any, inputs: Sequence[Any], state: Sequence[tf.Tensor]) -> list[Any]:
    """Returns the results of a loop or branch from the state after it, and updates the variables from the state."""
    variables = [value for value in inputs if isinstance(value, _VariableValue)]
    for variable, value in zip(variables, state[len(state) - len(variables) :], strict=True):
        variable.value = value
    tensors = iter(state)
    # A loop returns its variables in their original order.
    return [
        inputs[position] if tensor.dtype == tf.resource else next(tensors)
        for position, tensor in enumerate(operation.outputs)
    ]
