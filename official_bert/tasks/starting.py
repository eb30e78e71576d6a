"""The encoder that fine-tuning starts from, whatever --init names."""

import dataclasses
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from official_bert import conversion, files, finetuned
from official_bert.checkpoint_formats.checkpoint import POOLER, VOCAB_FILE, Array, Given, check_vocabulary, is_uncased
from official_bert.checkpoint_formats.google_files import read_small_files
from official_bert.config import BertConfig
from official_bert.encoder import build_encoder
from official_bert.errors import UserError
from official_bert.fast_tokenization import FastTokenizer


@dataclasses.dataclass(frozen=True)
class Start:
    """What --init holds.

    Attributes:
        config: of the encoder.
        vocab: the text of its vocab.txt.
        do_lower_case: whether the vocabulary is uncased.
        weights: float32 arrays by the names of the encoder's variables; what is missing is random.
        description: the task.json of a fine-tuned model, else None.
        folder: of that model.
        notes: what the user should know.
    """

    config: BertConfig
    vocab: str
    do_lower_case: bool
    weights: dict[str, Array]
    description: dict[str, Any] | None = None
    folder: str = ""
    notes: tuple[str, ...] = ()

    def build_encoder(self, seed: int, dtype: Any) -> keras.Model:
        """Returns the encoder; under a distribution strategy this must happen within its scope."""
        encoder = build_encoder(self.config, seed=seed, dtype=dtype)
        for variable in encoder.variables:
            if variable.path in self.weights:
                variable.assign(self.weights[variable.path])
        return encoder

    @contextmanager
    def tokenizer(self) -> Iterator[FastTokenizer]:
        """Yields the tokenizer."""
        with tempfile.TemporaryDirectory() as folder:  # it reads its vocabulary from a file, and some formats have none
            path = os.path.join(folder, VOCAB_FILE)
            files.write_text(path, self.vocab)
            yield FastTokenizer(path, self.do_lower_case)


def read_start(path: str, vocab_file: str | None = None, do_lower_case: bool | None = None) -> Start:
    """Reads what fine-tuning starts from.

    Args:
        path: a checkpoint of any format, a fine-tuned model's folder, or a bert_config.json, for random weights.
        vocab_file: the vocabulary, where the path has none.
        do_lower_case: whether it is uncased, where the path does not say it.

    Raises:
        UserError: something is missing, damaged, or does not fit together.
    """
    if finetuned.is_finetuned(path):
        return _from_finetuned(path)
    if path.endswith(".json"):
        config = BertConfig.from_json_file(path)
        if vocab_file is None:
            raise UserError(f"{path} gives random weights; give the vocabulary as --vocab_file")
        vocab = files.read_text(vocab_file)
        notes = check_vocabulary(vocab, config, vocab_file)
        uncased = is_uncased(vocab) if do_lower_case is None else do_lower_case
        return Start(config, vocab, uncased, {}, notes=(*notes, "the weights are random"))
    _, checkpoint = conversion.read(path, Given(vocab_file=vocab_file, do_lower_case=do_lower_case))
    if checkpoint.vocab is None:
        raise UserError(f"{path} has no vocabulary; give it as --vocab_file")
    notes = checkpoint.notes
    if POOLER not in checkpoint.parts:
        notes += ("the checkpoint has no pooler: that layer's weights are random",)
    return Start(checkpoint.config, checkpoint.vocab, checkpoint.do_lower_case, checkpoint.weights, notes=notes)


def _from_finetuned(folder: str) -> Start:
    small = read_small_files(folder, Given())
    loaded = finetuned.load(folder)
    names = {variable.path for variable in build_encoder(small.config).variables}
    weights = {variable.path: variable.numpy() for variable in loaded.model.variables if variable.path in names}
    note = f"the encoder is that of a model of {loaded.description['task']}"
    return Start(small.config, small.vocab or "", small.do_lower_case, weights, loaded.description, folder, (note,))
