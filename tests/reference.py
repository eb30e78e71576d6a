"""BERT's forward pass and optimizers in NumPy and float64, written from the papers, as a reference for our code."""

import math

import numpy as np

from official_bert.modeling.config import BertConfig

Array = np.ndarray


def gelu(x: Array, exact: bool) -> Array:
    if exact:
        return x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


class Reference:
    """A model with the given weights.

    Args:
        weights: Arrays by Keras variable path.
        config: Sizes of the model.
    """

    def __init__(self, weights: dict[str, Array], config: BertConfig) -> None:
        self.weights = {path: np.asarray(value, np.float64) for path, value in weights.items()}
        self.config = config

    def dense(self, x: Array, name: str) -> Array:
        return x @ self.weights[f"{name}/kernel"] + self.weights[f"{name}/bias"]

    def norm(self, x: Array, name: str) -> Array:
        mean = x.mean(axis=-1, keepdims=True)
        variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
        scaled = (x - mean) / np.sqrt(variance + self.config.layer_norm_eps)
        return scaled * self.weights[f"{name}/gamma"] + self.weights[f"{name}/beta"]

    def activation(self, x: Array) -> Array:
        functions = {"relu": lambda x: np.maximum(x, 0.0), "tanh": np.tanh, "linear": lambda x: x}
        if self.config.hidden_act in functions:
            return functions[self.config.hidden_act](x)
        return gelu(x, exact=self.config.hidden_act == "gelu_exact")

    def block(self, x: Array, input_mask: Array, name: str) -> Array:
        batch, length, width = x.shape
        heads = self.config.num_attention_heads
        size = width // heads

        def split(y: Array) -> Array:
            return y.reshape(batch, length, heads, size).transpose(0, 2, 1, 3)

        q, k, v = (split(self.dense(x, f"{name}_attention_{part}")) for part in ("query", "key", "value"))
        scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(size) - 10000.0 * (1.0 - input_mask[:, None, None, :])
        if self.config.causal_attention:
            scores = scores - 10000.0 * np.triu(np.ones((length, length)), k=1)
        context = (softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(batch, length, width)
        x = self.norm(x + self.dense(context, f"{name}_attention_output"), f"{name}_attention_layer_norm")
        hidden = self.activation(self.dense(x, f"{name}_intermediate"))
        return self.norm(x + self.dense(hidden, f"{name}_output"), f"{name}_output_layer_norm")

    def encode(self, input_ids: Array, input_mask: Array, segment_ids: Array) -> tuple[list[Array], Array]:
        """Returns every block's output and the pooled output."""
        words = self.weights["word_embeddings/embeddings"]
        x = words[input_ids] + self.weights["token_type_embeddings/embeddings"][segment_ids]
        x = x + self.weights["position_embeddings/embeddings"][: input_ids.shape[1]]
        x = self.norm(x, "embeddings_layer_norm")
        outputs = []
        for index in range(self.config.num_hidden_layers):
            x = self.block(x, input_mask, f"layer_{index}")
            outputs.append(x)
        pooled = x[np.arange(len(x)), input_mask.sum(axis=1) - 1] if self.config.causal_attention else x[:, 0]
        return outputs, np.tanh(self.dense(pooled, "pooler"))

    def predict(
        self, input_ids: Array, input_mask: Array, segment_ids: Array, masked_lm_positions: Array
    ) -> tuple[Array, Array]:
        """Returns the masked-LM logits at the positions, and the next-sentence logits."""
        outputs, pooled = self.encode(input_ids, input_mask, segment_ids)
        x = np.take_along_axis(outputs[-1], masked_lm_positions[:, :, None], axis=1)
        x = self.norm(self.activation(self.dense(x, "masked_lm_transform")), "masked_lm_layer_norm")
        logits = x @ self.weights["word_embeddings/embeddings"].T + self.weights["masked_lm_output/bias"]
        return logits, self.dense(pooled, "next_sentence")


class ReferenceAdamW:
    """BERT's optimizer in NumPy: schedule, clipping and update, as published with the original.

    Args:
        peak: Highest learning rate.
        num_steps: Step at which the learning rate reaches zero.
        warmup_steps: Step of the highest learning rate.
        settings: Other values of the attributes below.
    """

    beta_1, beta_2, epsilon, weight_decay_rate, clip_norm = 0.9, 0.999, 1e-6, 0.01, 1.0

    def __init__(self, peak: float, num_steps: int, warmup_steps: int, **settings: float) -> None:
        vars(self).update(settings)
        self.peak, self.num_steps, self.warmup_steps = peak, num_steps, warmup_steps
        self.step = 0
        self.moments: dict[str, tuple[Array, Array]] = {}

    def rate(self) -> float:
        if self.step < self.warmup_steps:
            return self.peak * self.step / self.warmup_steps
        return self.peak * (1 - min(self.step, self.num_steps) / self.num_steps)

    def apply(self, weights: dict[str, Array], gradients: dict[str, Array]) -> dict[str, Array]:
        norm = math.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
        clip = min(1.0, (self.clip_norm or np.inf) / norm)
        updated = {}
        for path, weight in weights.items():
            m, v = self.moments.get(path, (np.zeros_like(weight), np.zeros_like(weight)))
            gradient = gradients[path] * clip
            m = self.beta_1 * m + (1 - self.beta_1) * gradient
            v = self.beta_2 * v + (1 - self.beta_2) * gradient**2
            self.moments[path] = m, v
            is_matrix = path.rsplit("/", 1)[1] not in ("bias", "gamma", "beta")
            updated[path] = self.updated(weight, m, v, is_matrix)
        self.step += 1
        return updated

    def updated(self, weight: Array, m: Array, v: Array, is_matrix: bool) -> Array:
        return weight - self.rate() * (m / (np.sqrt(v) + self.epsilon) + self.weight_decay_rate * is_matrix * weight)


class ReferenceCorrectedAdamW(ReferenceAdamW):
    """AdamW with bias correction of both moments, as published."""

    def updated(self, weight: Array, m: Array, v: Array, is_matrix: bool) -> Array:
        t = self.step + 1
        return super().updated(weight, m / (1 - self.beta_1**t), v / (1 - self.beta_2**t), is_matrix)


class ReferenceLamb(ReferenceAdamW):
    """LAMB (algorithm 2 of arXiv:1904.00962) with variables as layers. Vectors are neither decayed nor adapted."""

    def updated(self, weight: Array, m: Array, v: Array, is_matrix: bool) -> Array:
        t = self.step + 1
        ratio = m / (1 - self.beta_1**t) / (np.sqrt(v / (1 - self.beta_2**t)) + self.epsilon)
        if not is_matrix:
            return weight - self.rate() * ratio
        update = ratio + self.weight_decay_rate * weight
        norms = np.linalg.norm(weight), np.linalg.norm(update)
        return weight - self.rate() * (norms[0] / norms[1] if all(norms) else 1.0) * update


class ReferenceKerasAdamW(ReferenceAdamW):
    """AdamW as in Keras: decay first, and bias correction in the learning rate, which leaves epsilon uncorrected."""

    def updated(self, weight: Array, m: Array, v: Array, is_matrix: bool) -> Array:
        t = self.step + 1
        weight = weight - self.rate() * self.weight_decay_rate * is_matrix * weight
        return weight - self.rate() * math.sqrt(1 - self.beta_2**t) / (1 - self.beta_1**t) * m / (
            np.sqrt(v) + self.epsilon
        )
