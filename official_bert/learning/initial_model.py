"""The encoder that fine-tuning starts from, whatever --init names."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras

from official_bert.checkpoints import finetuned, named_models, reading
from official_bert.checkpoints.checkpoint import POOLER, Array, LoadOverrides
from official_bert.checkpoints.model_files import read_model_files
from official_bert.checkpoints.vocabulary import check_vocabulary, is_uncased
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.tasks.heads.head import Head
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils import files


@dataclasses.dataclass(frozen=True)
class InitialModel:
    """What a run begins with: what --init names."""

    config: BertConfig  # of the encoder
    vocab: str  # the text of its vocab.txt
    do_lower_case: bool  # whether the vocabulary is uncased
    # float32 arrays by the paths of the encoder's variables; those that are missing are random
    weights: dict[str, Array]
    task_spec: dict[str, Any] | None = None  # the task.json of a fine-tuned model, else None
    folder: str = ""  # of that model
    model_weights: tuple[Array, ...] = ()  # all of that model's, in its order
    notes: tuple[str, ...] = ()  # what the user should know

    def describe(self, path: str, has_head: bool) -> str:
        """Returns a line on what was loaded, for the user.

        Args:
            path: what --init names.
            has_head: whether the task's head is the model's own.
        """
        config = self.config
        casing = "uncased" if self.do_lower_case else "cased"
        return (
            f"loaded {path}: {config.num_hidden_layers} layers of {config.hidden_size}, {casing} vocabulary of "
            f"{len(self.vocab.splitlines()):,} pieces; {'its head is used too' if has_head else 'the head is new'}"
        )

    def build_encoder(self, seed: int, dtype: Any) -> keras.Model:
        """Returns the encoder; under a distribution strategy this must happen within its scope."""
        encoder = build_encoder(self.config, seed=seed, dtype=dtype)
        for variable in encoder.variables:
            if variable.path in self.weights:
                variable.assign(self.weights[variable.path])
        return encoder

    def tokenizer(self) -> FastTokenizer:
        """Returns the tokenizer of its vocabulary."""
        return FastTokenizer.from_vocab(self.vocab, self.do_lower_case)


def read_initial_model(path: str, vocab_file: str | None = None, do_lower_case: bool | None = None) -> InitialModel:
    """Reads what fine-tuning begins with.

    Args:
        path: a checkpoint of any format or its name (hf:// or google://), a fine-tuned model's folder, or a
            bert_config.json, for random weights.
        vocab_file: the vocabulary, where the path has none.
        do_lower_case: whether it is uncased, where the path does not say it.

    Raises:
        UserError: something is missing, damaged, or does not fit together.
    """
    path = named_models.local_folder(path)
    if finetuned.is_finetuned(path):
        return _from_finetuned(path)
    if path.endswith(".json"):
        config = BertConfig.from_json_file(path)
        if vocab_file is None:
            raise UserError(f"{path} gives random weights; give the vocabulary as --vocab_file")
        vocab = files.read_text(vocab_file)
        notes = check_vocabulary(vocab, config, vocab_file)
        uncased = is_uncased(vocab) if do_lower_case is None else do_lower_case
        return InitialModel(config, vocab, uncased, {}, notes=(*notes, "the weights are random"))
    _, checkpoint = reading.read(path, LoadOverrides(vocab_file=vocab_file, do_lower_case=do_lower_case))
    if checkpoint.vocab is None:
        raise UserError(f"{path} has no vocabulary; give it as --vocab_file")
    notes = checkpoint.notes
    if POOLER not in checkpoint.parts:
        notes += ("the checkpoint has no pooler: that layer's weights are random",)
    return InitialModel(checkpoint.config, checkpoint.vocab, checkpoint.do_lower_case, checkpoint.weights, notes=notes)


def _from_finetuned(folder: str) -> InitialModel:
    small = read_model_files(folder, LoadOverrides())
    loaded = finetuned.load(folder)
    names = {variable.path for variable in build_encoder(small.config).variables}
    values = tuple(loaded.model.get_weights())
    paths = [variable.path for variable in loaded.model.weights]
    weights = {path: value for path, value in zip(paths, values, strict=True) if path in names}
    note = f"the encoder is that of a model of {loaded.task_spec['task']}"
    return InitialModel(
        small.config, small.vocab or "", small.do_lower_case, weights, loaded.task_spec, folder, values, (note,)
    )


def head_weights(initial_model: InitialModel, head: Head) -> list[Array] | None:
    """Returns the weights of a whole model, where --init is one with the same head; None for a new head."""
    spec = initial_model.task_spec
    return list(initial_model.model_weights) if spec is not None and _same_head(spec, head) else None


def _same_head(task_spec: Mapping[str, Any], head: Head) -> bool:
    """Whether the head of a fine-tuned model, by its task.json, has the weights of another."""
    own = head.task_spec(None, task_spec["max_seq_length"])
    names = ("kind", "labels", "num_choices", "head", "lstm_units")
    return all(task_spec.get(name) == own.get(name) for name in names)
