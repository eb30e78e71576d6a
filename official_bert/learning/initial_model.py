"""The encoder that fine-tuning starts from, whatever --init names."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import keras

from official_bert.checkpoints import finetuned, named_models, reading
from official_bert.checkpoints.checkpoint import CLASSIFIER_BIASES, POOLER, Array, LoadOverrides
from official_bert.checkpoints.model_files import read_model_files
from official_bert.checkpoints.vocabulary import FoundTokenizer, resolve_tokenizer
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.head_input import HeadInput
from official_bert.tasks.heads.head import Head
from official_bert.tokenization.casing import Casing
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils.counting import counted

NO_POOLER = "the checkpoint has no pooler: that layer's weights are random"


@dataclasses.dataclass(frozen=True)
class InitialModel:
    """What a run begins with: what --init names."""

    config: BertConfig  # of the encoder
    vocab: str  # the text of its vocab.txt
    casing: Casing  # of that vocabulary
    # float32 arrays by the paths of the variables of the encoder and, of some checkpoints, a classifier; an encoder's
    # that are missing are random
    weights: dict[str, Array]
    labels: tuple[str, ...] | None = None  # the classes' names of that classifier, where they are known
    kind: str | None = None  # of task that it is for, where that is known
    task_spec: dict[str, Any] | None = None  # the task.json of a fine-tuned model, else None
    folder: str = ""  # of that model
    model_weights: Mapping[str, Array] = dataclasses.field(default_factory=dict)  # all of that model's, by path
    notes: tuple[str, ...] = ()  # what the user should know

    def describe(self, path: str, has_head: bool) -> str:
        """Returns a line on what was loaded, for the user.

        Args:
            path: what --init names.
            has_head: whether the task's head is the model's own.
        """
        config = self.config
        return (
            f"loaded {path}: {counted(config.num_hidden_layers, 'layer')} of {config.hidden_size}, "
            f"{self.casing.kind} vocabulary of {len(self.vocab.splitlines()):,} pieces; "
            f"{'its head is used too' if has_head else 'the head is new'}"
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
        return FastTokenizer.from_vocab(self.vocab, **self.casing._asdict())


def read_initial_model(
    source: str | BertConfig,
    vocab_file: str | None = None,
    do_lower_case: bool | None = None,
    strip_accents: bool | None = None,
) -> InitialModel:
    """Reads what fine-tuning begins with.

    Args:
        source: a checkpoint of any format or its name (hf:// or google://), a fine-tuned model's folder, or, for random
            weights, a BertConfig or the path of a bert_config.json.
        vocab_file: the vocabulary, where the path has none.
        do_lower_case: whether it is uncased, where the path does not say it.
        strip_accents: whether lower-cased texts lose their accents, likewise; by default they do.

    Raises:
        UserError: something is missing, damaged, or does not fit together.
    """
    overrides = LoadOverrides(vocab_file=vocab_file, do_lower_case=do_lower_case, strip_accents=strip_accents)
    if isinstance(source, BertConfig) or source.endswith(".json"):
        config = source if isinstance(source, BertConfig) else BertConfig.from_json_file(source)
        where = "a BertConfig" if isinstance(source, BertConfig) else source
        if vocab_file is None:
            raise UserError(f"{where} gives random weights; give the vocabulary as --vocab_file")
        vocab, casing, notes = resolve_tokenizer(FoundTokenizer(where, {}, None, ""), overrides, config)
        return InitialModel(config, str(vocab), casing, {}, notes=(*notes, "the weights are random"))
    path = named_models.local_folder(source)
    if finetuned.is_finetuned(path):
        return _from_finetuned(path, overrides)
    _, checkpoint = reading.read(path, overrides)
    if checkpoint.vocab is None:
        raise UserError(f"{path} has no vocabulary; give it as --vocab_file")
    notes = checkpoint.notes
    if POOLER not in checkpoint.parts:
        notes += (NO_POOLER,)
    return InitialModel(
        checkpoint.config, checkpoint.vocab, checkpoint.casing, checkpoint.weights, checkpoint.labels,
        checkpoint.kind, notes=notes,
    )  # fmt: skip


def _from_finetuned(folder: str, overrides: LoadOverrides) -> InitialModel:
    small = read_model_files(folder, overrides)
    loaded = finetuned.load(folder)
    names = {variable.path for variable in build_encoder(small.config).variables}
    paths = [variable.path for variable in loaded.model.weights]
    values = dict(zip(paths, loaded.model.get_weights(), strict=True))
    weights = {path: value for path, value in values.items() if path in names}
    note = f"the encoder is that of a model of {loaded.task_spec['task']}"
    return InitialModel(
        small.config, small.vocab or "", small.casing, weights, task_spec=loaded.task_spec, folder=folder,
        model_weights=values, notes=(note,),
    )  # fmt: skip


def head_weights(initial_model: InitialModel, head: Head) -> list[Array] | None:
    """Returns the weights of a whole model, where --init is one with the same head; None for a new head.

    The same classes may have another order; those of the classifier then have it too.
    """
    spec = initial_model.task_spec
    if spec is None or not _same_head(spec, head):
        return None
    weights = initial_model.model_weights
    return list((_reordered(weights, spec["labels"], head.labels) if head.labels else weights).values())


def _same_head(task_spec: Mapping[str, Any], head: Head) -> bool:
    """Whether a fine-tuned model's head, by its task.json, has another's weights but for the order of the classes."""
    own = head.task_spec(None, task_spec["max_seq_length"])
    same_labels = sorted(task_spec["labels"] or ()) == sorted(own["labels"] or ())
    same_input = HeadInput.from_dict(task_spec) == head.head_input
    return same_labels and same_input and all(task_spec[name] == own[name] for name in ("kind", "num_choices"))


def checkpoint_weights(
    initial_model: InitialModel, head: Head, paths: Collection[str]
) -> tuple[dict[str, Array], str | None]:
    """Returns a checkpoint's weights by path, with its classifier if that fits the head, and a note on it.

    `paths` are those of the model's variables.

    A classifier fits if it has the same classes, in any order, and is for the same kind of task; classes without names
    are taken in the order of the head's.
    """
    weights, own = initial_model.weights, initial_model.labels
    bias = next((name for name in CLASSIFIER_BIASES if name in weights and name in paths), None)
    if bias is None:
        return weights, None
    number, labels = len(weights[bias]), head.labels
    described = f"the checkpoint's classifier is of {number} classes" + (f" ({', '.join(own)})" if own else "")
    if initial_model.kind not in (None, head.kind):
        problem = f"is for {str(initial_model.kind).replace('_', ' ')}"
    elif number != len(labels or "1") or (own and labels and sorted(own) != sorted(labels)):
        problem = f"the model's of {', '.join(labels)}" if labels else "the model's of one number"
    elif own and labels:
        return _reordered(weights, own, labels), None
    else:
        names = f"they are taken to be {', '.join(labels)}, in this order" if labels else None
        return weights, f"{described} without names; {names}" if names else None
    layer = bias.split("/")[0]
    kept = {name: value for name, value in weights.items() if not name.startswith(f"{layer}/")}
    return kept, f"{described}, {problem}: it is not taken"


def _reordered(weights: Mapping[str, Array], before: Sequence[str], after: Sequence[str]) -> dict[str, Array]:
    """The weights with a classifier's classes in another order."""
    order = [before.index(label) for label in after]
    layers = {name.split("/")[0] for name in CLASSIFIER_BIASES}
    return {name: value[..., order] if name.split("/")[0] in layers else value for name, value in weights.items()}
