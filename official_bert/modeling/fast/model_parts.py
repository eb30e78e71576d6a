"""Takes a built model apart into embeddings, blocks and heads, for functions that compute some of them in another way.

B batch size, S sequence length, H hidden size
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from official_bert.modeling import layer_names


@dataclasses.dataclass(frozen=True)
class BlockLayers:
    """The layers of an encoder block. A field is the layer's name without the prefix of the block."""

    attention_query: Any
    attention_key: Any
    attention_value: Any
    attention_probabilities: Any
    attention_probabilities_dropout: Any
    attention_context: Any
    attention_output: Any
    attention_output_dropout: Any
    attention_residual: Any
    attention_layer_norm: Any
    intermediate: Any
    output: Any
    output_dropout: Any
    output_residual: Any
    output_layer_norm: Any

    @property
    def encoded(self) -> Any:
        """The output of the block, [B, S, H], as a symbolic tensor."""
        return self.output_layer_norm.output


def find_blocks(model: keras.Model) -> list[BlockLayers]:
    """Returns the layers of each encoder block of a model, in order. Empty if the blocks are inside an inner model."""
    layers = {layer.name: layer for layer in model.layers}
    blocks: list[BlockLayers] = []
    while f"{(name := layer_names.block(len(blocks)))}_output_layer_norm" in layers:
        parts = {field.name: layers[f"{name}_{field.name}"] for field in dataclasses.fields(BlockLayers)}
        blocks.append(BlockLayers(**parts))
    return blocks


@dataclasses.dataclass(frozen=True)
class ModelParts:
    """The embeddings and the encoder blocks of a functional model, with the same layers and weights.

    Attributes:
        model: The functional model.
        embedded: The input of the first block, a symbolic tensor [B, S, H].
        blocks: The layers of each block.
        attention_ids: Name of the model input that masks attention.
    """

    model: keras.Model
    embedded: Any
    blocks: list[BlockLayers]
    attention_ids: str

    def features(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Selects the model's inputs from a dict, and converts them to int32 tensors."""
        return {name: ops.convert_to_tensor(inputs[name], "int32") for name in self.model.input}

    @property
    def encoded(self) -> list[Any]:
        """The first block's input and the outputs of all blocks, [B, S, H], as symbolic tensors."""
        return [self.embedded, *(block.encoded for block in self.blocks)]

    def block_models(self) -> list[keras.Model]:
        """Returns a Keras model for each block, from [x, attention_ids] to the block's output."""
        ids = self.model.input[self.attention_ids]
        return [keras.Model([x, ids], encoded) for x, encoded in itertools.pairwise(self.encoded)]

    def heads(self, outputs: Any = None) -> Callable[..., Any]:
        """Returns a function that computes the outputs of the model from the outputs of its blocks.

        The function takes a list of the first block's input and the outputs of all blocks, the model's inputs, and
        `training`.

        Args:
            outputs: The symbolic tensors of the model to compute, in any structure. None means the model's outputs.
        """
        outputs = self.model.output if outputs is None else outputs
        encoded = self.encoded
        # Keras builds no model whose output is its input, as an encoder's sequence_output would be.
        wanted = keras.tree.flatten(outputs)
        predicted = [tensor for tensor in wanted if id(tensor) not in map(id, encoded)]
        model = keras.Model([*encoded, *self.model.input.values()], predicted) if predicted else None

        def call(values: Sequence[Any], features: dict[str, Any], training: bool = False) -> Any:
            # Flattened, since Keras gives a single output without its list.
            predictions = keras.tree.flatten(model([*values, *features.values()], training=training)) if model else []
            by_symbol = dict(zip(map(id, (*encoded, *predicted)), (*values, *predictions), strict=True))
            return keras.tree.pack_sequence_as(outputs, [by_symbol[id(tensor)] for tensor in wanted])

        return call


def split_model(model: keras.Model) -> ModelParts | None:
    """Splits an encoder, or a model that extends its graph, into its parts. Returns None if it has no blocks.

    The blocks of a multiple-choice model are inside its inner model (see `replace_inner_model`), so the result is None.
    """
    blocks = find_blocks(model)
    if not blocks:
        return None
    embedded = model.get_layer(layer_names.EMBEDDINGS_DROPOUT).output
    return ModelParts(model, embedded, blocks, "record_ids" if "record_ids" in model.input else "input_mask")


def replace_inner_model(model: keras.Model, replace: Callable[[keras.Model], Callable[..., Any]]) -> Callable[..., Any]:
    """Returns a function that computes a multiple-choice model, with its inner encoder replaced by another function.

    Args:
        model: A model from `build_multiple_choice_model`. Other models are returned unchanged.
        replace: Takes the inner model, and returns a function with the same arguments and outputs.
    """
    layers = {layer.name: layer for layer in model.layers}
    if layer_names.CHOICE_ENCODER not in layers:
        return model
    encode = replace(layers[layer_names.CHOICE_ENCODER])
    fold = keras.Model(model.input, {name: layers[f"fold_{name}"].output for name in model.input})
    score = keras.Model(layers[layer_names.MULTIPLE_CHOICE].input, model.output)

    def call(features: dict[str, Any], training: bool = False) -> Any:
        features = {name: features[name] for name in model.input}
        return score(encode(fold(features), training=training), training=training)

    return call
