"""The sizes and rates of a BERT model, as in the original's bert_config.json."""

import dataclasses
import json
import os
from typing import Any

from official_bert.errors import UserError
from official_bert.modeling.choices import HUB_MODELS, MINIATURES
from official_bert.utils import files
from official_bert.utils.configs import find_config, get_packaged_path
from official_bert.utils.counting import suggest

# The Chinese and multilingual releases have these keys, which the original's code does not read.
IGNORED_KEYS = frozenset(
    "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head "
    "pooler_type".split()
)

# "gelu" is the tanh approximation, as in the original. "gelu_exact" uses erf, like Hugging Face's "gelu".
ACTIVATIONS = ("gelu", "gelu_exact", "relu", "tanh", "linear")

LAYER_NORM_EPSILON = 1e-12  # the original's

# Larger sizes are rejected, because they come from damaged or malicious files, and building the model would not end.
_GREATEST = {
    "vocab_size": 10_000_000,
    "hidden_size": 100_000,
    "num_hidden_layers": 1000,
    "num_attention_heads": 10_000,
    "intermediate_size": 1_000_000,
    "max_position_embeddings": 1_000_000,
    "type_vocab_size": 10_000,
}


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Sizes and rates of a BERT encoder, with the keys and defaults of the original's bert_config.json.

    One default differs: `type_vocab_size` is 2 (two segments, as in the paper and every released model). In the
    original's class it is 16.

    Attributes:
        vocab_size: Number of word pieces, V.
        hidden_size: Width of the encoder, a multiple of `num_attention_heads`.
        num_hidden_layers: Number of encoder blocks.
        num_attention_heads: Number of attention heads per block, N.
        intermediate_size: Width of the feed-forward layer.
        hidden_act: Activation of the feed-forward layer and of the masked-LM transform, one of `ACTIVATIONS`.
        hidden_dropout_prob: Dropout rate of the embeddings and of each sub-layer's output, in [0, 1).
        attention_probs_dropout_prob: Dropout rate of the attention probabilities, in [0, 1).
        max_position_embeddings: Maximum length of a sequence.
        type_vocab_size: Number of segment ids.
        initializer_range: Standard deviation of the truncated normal that initializes all matrices.
        layer_norm_eps: Number that layer normalization adds to the variance. The file contains it only if it differs
            from the original's value.
        causal_attention: Whether each position attends only to itself and to earlier positions, as in the left-to-right
            models of the paper's table 5. Their pooled vector belongs to the last token, because [CLS] attends only to
            itself. The file contains it only if it is true.

    Raises:
        UserError: If a value is out of range.
    """

    vocab_size: int
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = LAYER_NORM_EPSILON
    causal_attention: bool = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type is int:
                if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                    raise UserError(f"{field.name} is {value!r}; expected a whole number of at least 1")
                if value > _GREATEST[field.name]:
                    shown = f"{value:,}" if value < 10**18 else "a number of more than 18 digits"
                    raise UserError(f"{field.name} is {shown}; expected at most {_GREATEST[field.name]:,}")
            elif field.type is bool and not isinstance(value, bool):
                raise UserError(f"{field.name} is {value!r}; expected true or false")
            elif field.type is float and (not isinstance(value, int | float) or isinstance(value, bool)):
                raise UserError(f"{field.name} is {value!r}; expected a number")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UserError(f"{name} is {getattr(self, name)}; expected a number of at least 0 and less than 1")
        if not self.initializer_range > 0:
            raise UserError(f"initializer_range is {self.initializer_range}; expected a positive standard deviation")
        if not 0 < self.layer_norm_eps < 1:
            raise UserError(f"layer_norm_eps is {self.layer_norm_eps}; expected a small positive number, such as 1e-12")
        if self.hidden_act not in ACTIVATIONS:
            raise UserError(f"hidden_act is {self.hidden_act!r}; expected one of {', '.join(ACTIVATIONS)}")
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}; "
                "change one of them so that every head gets the same width"
            )

    @property
    def predicts_masked_tokens(self) -> bool:
        """Whether the model fills in [MASK].

        If False (causal attention), it predicts each token from the tokens before it.
        """
        return not self.causal_attention

    @property
    def token_objective(self) -> str:
        """Name of the objective that predicts tokens, "masked LM" or "next token", for logs and reports."""
        return "masked LM" if self.predicts_masked_tokens else "next token"

    def require_masked_lm(self) -> None:
        """Raises a UserError if the model has causal attention, and therefore cannot fill in [MASK]."""
        if not self.predicts_masked_tokens:
            raise UserError(
                "the model has causal attention: it predicts the next token and cannot fill in [MASK]; "
                "choose a model that was pre-trained without --left_to_right"
            )

    def check_length(self, max_seq_length: int, model: str = "the model", name: str = "--max_seq_length") -> None:
        """Raises a UserError if sequences are longer than the model has positions.

        Args:
            max_seq_length: Maximum number of tokens of a sequence.
            model: Name of the model, or of its configuration, in the message.
            name: Name of the setting in the message.
        """
        if max_seq_length > self.max_position_embeddings:
            raise UserError(
                f"{name} is {max_seq_length}, but {model} has max_position_embeddings={self.max_position_embeddings}; "
                "choose a shorter length"
            )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "BertConfig":
        """Creates a configuration from the keys of a bert_config.json.

        As in the original, hidden_act is converted to lower case, and an empty or null hidden_act is "linear".

        Raises:
            UserError: If a key is unknown, vocab_size is missing, or a value is out of range.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known and key not in IGNORED_KEYS:
                hint = suggest(key, known) or f"; the keys are {', '.join(known)}"
                raise UserError(f"unknown key {key!r} in the model configuration{hint}")
        if "vocab_size" not in values:
            raise UserError("the model configuration has no vocab_size; add the number of lines of vocab.txt")
        if "hidden_act" in values:
            act = values["hidden_act"]
            values = {**values, "hidden_act": "linear" if act in ("", None) else str(act).lower()}
        return cls(**{key: value for key, value in values.items() if key in known})

    @classmethod
    def from_name(cls, name: str) -> "BertConfig":
        """Returns the configuration of a released model, such as bert-mini, bert-base-uncased or uncased_L-2_H-128_A-2.

        Raises:
            UserError: If no released model has this name.
        """
        folder, sizes = get_packaged_path("configs/models"), {**HUB_MODELS, **MINIATURES}
        releases = sorted(file.removesuffix(".json") for file in os.listdir(folder))
        if name not in sizes and name not in releases:
            raise UserError(f"no released model is named {name!r}; the names are {', '.join([*sizes, *releases])}")
        return cls.from_json_file(os.path.join(folder, f"{sizes.get(name, name)}.json"))

    @classmethod
    def from_json_file(cls, path: str) -> "BertConfig":
        """Reads a bert_config.json. Raises a UserError that names the file if it is invalid.

        Args:
            path: Path of the file. A path in configs/ can also be that of the installed package.
        """
        values = files.read_json_object(find_config(path))
        try:
            return cls.from_dict(values)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """Returns the configuration as a dict with the keys of bert_config.json."""
        values = dataclasses.asdict(self)
        if self.layer_norm_eps == LAYER_NORM_EPSILON:
            del values["layer_norm_eps"]
        if not self.causal_attention:
            del values["causal_attention"]
        return values

    def to_json(self) -> str:
        """Returns the configuration as the text of a bert_config.json."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"
