"""Which model a run trains, and the weights that it begins with."""

import dataclasses

from official_bert.errors import UserError
from official_bert.utils.flags import MODEL, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The flags about the model."""

    bert_config_file: str = option(
        dataclasses.MISSING, "The model's bert_config.json; configs/models has all sizes.", group=MODEL, free=True
    )
    vocab_size_from_vocab: bool = option(
        False,
        "Whether --vocab_file's number of tokens takes the place of the configuration's vocab_size.",
        group=MODEL,
        free=True,
    )
    left_to_right: bool = option(
        False,
        "Whether attention is causal and each token is predicted from those before it, instead of masked tokens.",
        group=MODEL,
    )
    init_checkpoint: str | None = option(
        None, "Weights to start from: a run's folder or a checkpoint, ours or a TF1 one.", group=MODEL
    )
    init_allow: list[str] = option(
        [],
        "Regular expressions of whole names, separated by commas: weights that it may lack, or hold unused.",
        group=MODEL,
        free=True,
    )

    def check_model(self) -> None:
        """Raises a UserError if flags about the model contradict each other."""
        if self.init_allow and not self.init_checkpoint:
            raise UserError("--init_allow is about --init_checkpoint, which is not given")
