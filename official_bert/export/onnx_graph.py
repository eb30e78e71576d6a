"""Converts a Keras model to an ONNX graph for ONNX Runtime.

The encoder uses ONNX Runtime's fused operations (domain com.microsoft) for embeddings, attention, residual sums with
layer normalization, and GELU. The layers after the encoder are converted one by one.

B batch, S sequence, N heads or choices, H hidden size, U units of a BiLSTM
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from official_bert.errors import UserError
from official_bert.export.onnx_nodes import FUSED, Graph
from official_bert.inference.onnx_model import disable_telemetry
from official_bert.kinds.multiple_choice.model import FoldChoices, UnfoldChoices
from official_bert.kinds.question_answering.model import SpanLogits
from official_bert.kinds.regression.model import WithoutAxis
from official_bert.modeling import layer_names
from official_bert.modeling.bilstm import BiLSTM
from official_bert.modeling.choices import CLS_POOLING, MAX, POOLED
from official_bert.modeling.dropout import Dropout
from official_bert.modeling.encoder_block import MASKED_SCORE
from official_bert.modeling.fast.model_parts import BlockLayers, find_blocks
from official_bert.modeling.heads import FirstPosition, LastToken
from official_bert.modeling.initialization import gelu_exact, gelu_tanh
from official_bert.modeling.pooling import build_vector_model
from official_bert.utils import files
from official_bert.version import __version__

Array = npt.NDArray[Any]

_OPSET = 18
_FLOAT = TensorProto.FLOAT
_NO_SPAN = -1e9  # The logit that SpanLogits gives to padding.


def onnx_model(
    model: keras.Model, pooling: str | None = None, layers: Sequence[int] = (-1,), normalize: bool = False
) -> onnx.ModelProto:
    """Converts a Keras model to ONNX, with int64 inputs of any batch size and length, and float32 outputs.

    A single output is named logits. If there are several, they keep their names.

    Args:
        model: A model with a head, or an encoder.
        pooling: For an encoder: how its outputs are pooled into the only output `vector` (see `build_vector_model`).
            If None, the outputs are not pooled.
        layers: If pooling is set: numbers of the blocks whose outputs are pooled.
        normalize: If pooling is set: whether to divide each vector by its Euclidean length.

    Raises:
        UserError: If the model has a layer or a weight that cannot be converted.
    """
    graph = Graph()
    values = {}
    inputs = []
    for name, tensor in model.input.items():
        # ONNX Runtime's fused operations take int32, but ids are int64 in most other programs.
        values[id(tensor)] = graph.node("Cast", [name], f"{name}/int32", to=TensorProto.INT32)
        sizes = ["batch", *tensor.shape[1:-1], "sequence"]
        inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, sizes))
    writer = _ModelWriter(graph, model, values)
    converted = model if pooling is None else build_vector_model(model, pooling, layers)
    if pooling is not None:
        vector = writer.pool(pooling, layers)
        normalized = graph.node("LpNormalization", [vector], "normalized", axis=-1, p=2) if normalize else vector
        outputs = {"vector": normalized}
        shapes = {"vector": converted.output.shape}
    else:
        by_name = model.output if isinstance(model.output, dict) else {"logits": model.output}
        # Outputs with all positions come first. Otherwise the last block would be computed for [CLS] only.
        order = sorted(by_name, key=lambda name: -len(by_name[name].shape))
        outputs = {name: writer.value(by_name[name]) for name in order}
        shapes = {name: by_name[name].shape for name in order}
    absent = [variable.path for variable in converted.weights if variable.path not in graph.variables]
    if absent:
        raise UserError(
            f"{len(absent)} of {len(converted.weights)} weights cannot be converted to ONNX: {', '.join(absent[:3])}. "
            "Pass another --format, or write their operations in official_bert/export/onnx_graph.py."
        )
    for name, value in outputs.items():
        graph.node("Identity", [value], name, output=name)
    infos = [
        helper.make_tensor_value_info(name, _FLOAT, [shape[0] or "batch", *(size or "sequence" for size in shape[1:])])
        for name, shape in shapes.items()
    ]
    proto = helper.make_graph(graph.nodes, model.name, inputs, infos, graph.initializers)
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(FUSED, 1)]
    return helper.make_model(
        proto, opset_imports=opsets, ir_version=10, producer_name="official-bert", producer_version=__version__
    )


def write(model: onnx.ModelProto, path: str, quantized: bool) -> None:
    """Writes an ONNX model to a file.

    Args:
        model: The model.
        path: The local file.
        quantized: Whether to store matrices and embedding tables as 8-bit integers. Inputs of matrix products are then
            also quantized, by their range in each call.
    """
    if not quantized:
        files.write_bytes(path, model.SerializeToString())
        return
    disable_telemetry()
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _hide_advice():
        types = {"DefaultTensorType": _FLOAT}  # The type of outputs of fused operations, which ONNX cannot infer.
        # A scale per column reduces the error to a third. reduce_range stores 7-bit weights: processors without VNNI
        # add two 8-bit products in 16 bits, and the sum would saturate.
        quantize_dynamic(
            model, path, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8, extra_options=types
        )


@contextlib.contextmanager
def _hide_advice() -> Iterator[None]:
    """Disables logging within the context, because the quantizer recommends steps that have already been done."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


class _ModelWriter:
    """Converts a functional Keras model. It starts at the outputs and converts the layers that they depend on."""

    def __init__(self, graph: Graph, model: keras.Model, values: dict[int, str]) -> None:
        self._graph, self._model = graph, model
        self._values = values  # Names of converted symbolic tensors, by id().
        layers = {layer.name: layer for layer in model.layers}
        self._block_layers = find_blocks(model)
        self._blocks = {id(block.encoded): number for number, block in enumerate(self._block_layers)}
        self._layers = {
            id(tensor): layer
            for name, layer in layers.items()
            if name not in layer_names.EMBEDDINGS | {layer_names.CHOICE_ENCODER}
            for tensor in keras.tree.flatten(layer.output)
        }
        self._embedded = None
        if layer_names.CHOICE_ENCODER in layers:
            self._write_inner_model(layers[layer_names.CHOICE_ENCODER])
        else:
            self._embedded = layers[layer_names.EMBEDDINGS_DROPOUT].output

    def value(self, tensor: Any) -> str:
        """Returns the name of a symbolic tensor in the ONNX graph. Converts the layers that compute it if necessary."""
        key = id(tensor)
        if key not in self._values:
            if tensor is self._embedded:
                self._values[key] = self._embeddings()
            elif key in self._blocks:
                self._values[key] = self._block(self._blocks[key])
            else:
                self._write_layer(self._layers[key])
        return self._values[key]

    def pool(self, pooling: str, chosen: Sequence[int]) -> str:
        """Adds the pooling of token vectors into text vectors (see modeling/pooling.py).

        Args:
            pooling: The pooling method.
            chosen: Numbers of the L blocks whose outputs are concatenated, from 1, or from -1 for the last block.

        Returns:
            The name of the text vectors [B, L * H].
        """
        graph = self._graph
        if pooling == POOLED:
            return self.value(self._model.output["pooled_output"])
        blocks = self._block_layers
        encoded = [self.value(blocks[layer - 1 if layer > 0 else layer].encoded) for layer in chosen]
        values = graph.node("Concat", encoded, "chosen_layers", axis=2) if len(encoded) > 1 else encoded[0]
        if pooling == CLS_POOLING:
            return graph.node("Gather", [values, graph.constant("zero", 0, np.int64)], "cls", axis=1)
        mask = graph.node("Unsqueeze", [self._mask(), graph.numbers(2)], "mask_of_vectors")
        if pooling == MAX:
            is_token = graph.node("Cast", [mask], "is_token", to=TensorProto.BOOL)
            kept = graph.node("Where", [is_token, values, graph.constant("least", -np.inf)], "tokens_alone")
            return graph.node("ReduceMax", [kept, graph.numbers(1)], "maximum", keepdims=0)
        weights = graph.node("Cast", [mask], "token_weights", to=_FLOAT)
        total = graph.node("ReduceSum", [graph.node("Mul", [values, weights], "weighed"), graph.numbers(1)], "total",
                           keepdims=0)  # fmt: skip
        count = graph.node("ReduceSum", [weights, graph.numbers(1)], "count", keepdims=0)
        return graph.node("Div", [total, count], "mean")

    # The encoder.

    def _embeddings(self) -> str:
        layer, graph = self._model.get_layer, self._graph

        norm = layer(layer_names.EMBEDDINGS_LAYER_NORM)
        names = (layer_names.WORD_EMBEDDINGS, layer_names.POSITION_EMBEDDINGS, layer_names.TOKEN_TYPE_EMBEDDINGS)
        tables = [self._weight(layer(name), "embeddings") for name in names]
        ids = [self.value(self._model.input[name]) for name in ("input_ids", "segment_ids")]
        # The second output, an index of masks, is unused but needs a name.
        name = "embeddings"
        graph.nodes.append(helper.make_node(
            "EmbedLayerNormalization", [*ids, *tables, *self._scale_and_shift(norm)], [f"{name}:0", f"{name}:1"],
            name=name, domain=FUSED, epsilon=norm.epsilon,
        ))  # fmt: skip
        return f"{name}:0"

    def _block(self, number: int, only_first: bool = False) -> str:
        """Adds an encoder block, from [B, S, H] to [B, S, H]. Returns the name of its output.

        Args:
            number: Index of the block.
            only_first: Whether to compute only the output of the first position [B, 1, H].
        """
        block, graph, name = self._block_layers[number], self._graph, layer_names.block(number)
        x = self.value(self._block_layers[number - 1].encoded if number else self._embedded)
        if only_first:
            start, end, axis = (graph.numbers(value) for value in (0, 1, 1))
            queries = graph.node("Slice", [x, start, end, axis], f"{name}_first_position")
            context = self._write_attention(block, queries, x, name)
        else:
            queries, context = x, self._attention(block, x, name)
        attended = self._product(context, block.attention_output, f"{name}_attention_output")
        x = self._normalized_sum(attended, queries, block.attention_output, block.attention_layer_norm)
        hidden = self._activated(self._product(x, block.intermediate, f"{name}_intermediate"), block.intermediate)
        hidden = self._product(hidden, block.output, f"{name}_output")
        return self._normalized_sum(hidden, x, block.output, block.output_layer_norm)

    def _attention(self, block: BlockLayers, x: str, name: str) -> str:
        """Adds self-attention of all positions, from [B, S, H] to [B, S, H].

        Queries, keys and values are computed by one matrix product.
        """
        graph, attention = self._graph, block.attention_probabilities
        projections = (block.attention_query, block.attention_key, block.attention_value)
        kernels, biases = ([graph.read(getattr(each, part)) for each in projections] for part in ("kernel", "bias"))
        kernel = graph.constant(f"{name}_attention/kernel", np.concatenate(kernels, 1))
        bias = graph.constant(f"{name}_attention/bias", np.concatenate(biases))
        return graph.fused(
            "Attention", [x, kernel, bias, self._mask()], f"{name}_attention", num_heads=attention.num_heads,
            unidirectional=int(attention.causal), mask_filter_value=MASKED_SCORE,
        )  # fmt: skip

    def _write_attention(self, block: BlockLayers, queries: str, x: str, name: str) -> str:
        """Adds attention of the first position to all, from queries [B, 1, H] and x [B, S, H] to [B, 1, H]."""
        graph = self._graph

        def projected(source: str, dense: Any) -> str:
            product = self._product(source, dense, f"{name}_{dense.name}")
            return graph.node("Add", [product, self._bias(dense)], f"{dense.name}_biased")

        parts = [projected(queries, block.attention_query), projected(x, block.attention_key),
                 projected(x, block.attention_value)]  # fmt: skip
        return graph.fused(
            "MultiHeadAttention", [*parts, "", self._mask()], f"{name}_attention",
            num_heads=block.attention_probabilities.num_heads, mask_filter_value=MASKED_SCORE,
        )  # fmt: skip

    def _mask(self) -> str:
        return self.value(self._model.input["input_mask"])

    def _normalized_sum(self, product: str, residual: str, dense: Any, norm: Any) -> str:
        inputs = [product, residual, *self._scale_and_shift(norm), self._bias(dense)]
        return self._graph.fused("SkipLayerNormalization", inputs, norm.name, epsilon=norm.epsilon)

    # Parts of layers.

    def _product(self, x: str, dense: Any, name: str) -> str:
        return self._graph.node("MatMul", [x, self._weight(dense, "kernel")], name)

    def _bias(self, dense: Any) -> str:
        return self._weight(dense, "bias")

    def _scale_and_shift(self, norm: Any) -> list[str]:
        return [self._weight(norm, "gamma"), self._weight(norm, "beta")]

    def _weight(self, layer: Any, part: str) -> str:
        return self._graph.constant(f"{layer.name}/{part}", self._graph.read(getattr(layer, part)))

    def _activated(self, product: str, dense: Any) -> str:
        """Adds the bias and the activation of a dense layer to its matrix product."""
        graph, bias, name = self._graph, self._bias(dense), f"{dense.name}_activated"
        if dense.activation is gelu_tanh:
            return graph.fused("FastGelu", [product, bias], name)
        if dense.activation is gelu_exact:
            return graph.fused("BiasGelu", [product, bias], name)
        biased = graph.node("Add", [product, bias], f"{dense.name}_biased")
        if dense.activation is keras.activations.linear:
            return biased
        operation = {keras.activations.relu: "Relu", keras.activations.tanh: "Tanh"}[dense.activation]
        return graph.node(operation, [biased], name)

    # Other layers.

    def _write_layer(self, layer: Any) -> None:
        """Writes the ONNX nodes of a layer outside of the encoder, and records the names of its outputs."""
        write = next((write for kind, write in _WRITERS.items() if isinstance(layer, kind)), None)
        if write is None:
            raise UserError(f"The layer {layer.name} ({type(layer).__name__}) cannot be converted to ONNX.")
        outputs = keras.tree.flatten(layer.output)
        for tensor, value in zip(outputs, write(self, layer), strict=True):
            self._values[id(tensor)] = value

    def _write_inner_model(self, inner: keras.Model) -> None:
        """Converts the encoder that a multiple-choice model applies to each choice."""
        inputs = {id(inner.input[name]): self.value(self._model.get_layer(f"fold_{name}").output)
                  for name in self._model.input}  # fmt: skip
        scored = self._model.get_layer(layer_names.MULTIPLE_CHOICE).input
        self._values[id(scored)] = _ModelWriter(self._graph, inner, inputs).value(inner.output)

    def _inputs(self, layer: Any) -> list[str]:
        return [self.value(tensor) for tensor in keras.tree.flatten(layer.input)]

    def _dense(self, layer: Any) -> list[str]:
        return [self._activated(self._product(self._inputs(layer)[0], layer, layer.name), layer)]

    def _first_position(self, layer: Any) -> list[str]:
        graph, key = self._graph, id(layer.input)
        if key in self._blocks and key not in self._values and self._blocks[key] == len(self._blocks) - 1:
            vectors = self._block(self._blocks[key], only_first=True)
            return [graph.node("Squeeze", [vectors, graph.numbers(1)], layer.name)]
        return [graph.node("Gather", [*self._inputs(layer), graph.constant("zero", 0, np.int64)], layer.name, axis=1)]

    def _last_token(self, layer: Any) -> list[str]:
        graph, (x, mask) = self._graph, self._inputs(layer)
        count = graph.node("ReduceSum", [mask, graph.numbers(1)], f"{layer.name}_tokens", keepdims=1)  # [B, 1]
        last = graph.node("Sub", [count, graph.constant("one", 1, np.int32)], f"{layer.name}_position")
        last = graph.node("Max", [last, graph.constant("no_token", 0, np.int32)], f"{layer.name}_position")
        last = graph.node("Cast", [last], f"{layer.name}_index", to=TensorProto.INT64)
        return [graph.node("GatherND", [x, last], layer.name, batch_dims=1)]

    def _drop_axis(self, layer: Any) -> list[str]:
        return [self._graph.node("Squeeze", [*self._inputs(layer), self._graph.numbers(-1)], layer.name)]

    def _span_logits(self, layer: Any) -> list[str]:
        graph, (scores, mask) = self._graph, self._inputs(layer)
        is_token = graph.node("Cast", [mask], f"{layer.name}_is_token", to=TensorProto.BOOL)  # [B, S]
        logits = []
        for column in keras.tree.flatten({"start_logits": 0, "end_logits": 1}):  # In the order of the layer's outputs.
            name = f"{layer.name}_{column}"
            index = graph.constant(f"column_{column}", column, np.int64)
            scores_of_column = graph.node("Gather", [scores, index], name, axis=2)
            padding = graph.constant("padding_logit", _NO_SPAN)
            logits.append(graph.node("Where", [is_token, scores_of_column, padding], f"{name}_masked"))
        return logits

    def _fold(self, layer: Any) -> list[str]:
        """Adds nodes that reshape the inputs [B, N, S] of a layer to [B * N, S]. Returns their names."""
        graph, (x,) = self._graph, self._inputs(layer)
        length = graph.node("Shape", [x], f"{layer.name}_length", start=2)
        shape = graph.node("Concat", [graph.numbers(-1), length], f"{layer.name}_shape", axis=0)
        return [graph.node("Reshape", [x, shape], layer.name)]

    def _unfold(self, layer: Any) -> list[str]:
        return [self._graph.node("Reshape", [*self._inputs(layer), self._graph.numbers(-1, layer.num_choices)],
                                 layer.name)]  # fmt: skip

    def _merged(self, layer: Any) -> list[str]:
        if isinstance(layer, keras.layers.Concatenate):
            return [self._graph.node("Concat", self._inputs(layer), layer.name, axis=layer.axis)]
        return [self._graph.node("Sum", self._inputs(layer), layer.name)]

    def _bilstm(self, layer: Any) -> list[str]:
        graph, (x, mask) = self._graph, self._inputs(layer)
        directions = (layer.bidirectional.forward_layer, layer.bidirectional.backward_layer)

        def stacked(part: str, weight: Callable[[Any], Any]) -> str:
            values = [_reorder_gates(graph.read(weight(direction.cell))) for direction in directions]
            return graph.constant(f"{layer.name}/{part}", np.stack(values))

        kernels = stacked("kernel", lambda cell: cell.kernel)  # [2, 4 U, H]
        recurrent = stacked("recurrent_kernel", lambda cell: cell.recurrent_kernel)  # [2, 4 U, U]
        biases = [_reorder_gates(graph.read(each.cell.bias)) for each in directions]
        bias = graph.constant(f"{layer.name}/bias", [np.concatenate([each, np.zeros_like(each)]) for each in biases])
        lengths = graph.node("ReduceSum", [mask, graph.numbers(1)], f"{layer.name}_lengths", keepdims=0)
        by_time = graph.node("Transpose", [x], f"{layer.name}_by_time", perm=[1, 0, 2])
        outputs = graph.node(
            "LSTM", [by_time, kernels, recurrent, bias, lengths], layer.name, hidden_size=layer.units,
            direction="bidirectional",
        )  # fmt: skip
        by_row = graph.node("Transpose", [outputs], f"{layer.name}_by_row", perm=[2, 0, 1, 3])  # [B, S, 2, U]
        return [graph.node("Reshape", [by_row, graph.numbers(0, 0, 2 * layer.units)], f"{layer.name}_sequence")]


# Layers after the encoder, with the method that converts them and returns the names of their flattened outputs.
_WRITERS: dict[type, Callable[[_ModelWriter, Any], list[str]]] = {
    keras.layers.Dense: _ModelWriter._dense,
    keras.layers.Activation: _ModelWriter._inputs,  # The layer "logits" only sets a dtype.
    Dropout: _ModelWriter._inputs,
    FirstPosition: _ModelWriter._first_position,
    LastToken: _ModelWriter._last_token,
    WithoutAxis: _ModelWriter._drop_axis,
    SpanLogits: _ModelWriter._span_logits,
    FoldChoices: _ModelWriter._fold,
    UnfoldChoices: _ModelWriter._unfold,
    keras.layers.Concatenate: _ModelWriter._merged,
    keras.layers.Add: _ModelWriter._merged,
    BiLSTM: _ModelWriter._bilstm,
}


def _reorder_gates(weights: Array) -> Array:
    """Converts LSTM weights [..., 4 U] in Keras' gate order (input, forget, cell, output) to ONNX's [4 U, ...]."""
    gates = np.split(weights, 4, axis=-1)
    return np.ascontiguousarray(np.concatenate([gates[0], gates[3], gates[1], gates[2]], axis=-1).T)
