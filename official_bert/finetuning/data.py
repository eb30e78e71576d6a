"""Reads the examples of a run's splits and converts them to features. Each split is read and tokenized only once."""

import dataclasses
import hashlib
import json
from typing import Any

from official_bert.kinds.features import Features
from official_bert.tasks.task import Task
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils.bad_rows import BadRows
from official_bert.version import __version__


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunData:
    """The examples and features of a task's splits, such as "train" and "dev". They are computed when first needed."""

    task: Task  # reads and tokenizes the examples
    tokenizer: FastTokenizer  # tokenizer of the model
    max_seq_length: int  # maximum sequence length
    bad_rows: BadRows  # collects rows that cannot be read
    _examples: dict[str, list[Any]] = dataclasses.field(default_factory=dict)  # by split
    _features: dict[str, Features] = dataclasses.field(default_factory=dict)  # by split

    def read(self, split: str) -> list[Any]:
        """Returns the examples of a split."""
        if split not in self._examples:
            self._examples[split] = self.task.read(split, self.bad_rows)
        return self._examples[split]

    def digest(self, split: str) -> str:
        """Returns a digest of the examples of a split and of everything else that its features depend on."""
        # Entries of task.json that do not affect features, or that the examples already contain.
        ignored = ("table", *self.task.spec.decision_settings)
        settings = self.task.task_spec(self.max_seq_length)
        inputs = [
            __version__,
            {key: value for key, value in settings.items() if key not in ignored},
            *self.tokenizer.casing.settings.values(),
            list(self.tokenizer.vocab.items()),
        ]
        hasher = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode())
        for example in self.read(split):
            # The repr of a dataclass or tuple of strings and numbers is the same in every process.
            hasher.update(repr(example).encode("utf-8", "surrogatepass") + b"\0")
        return hasher.hexdigest()[:32]

    def features(self, split: str) -> Features:
        """Returns the features of a split, and prints a note if examples are truncated."""
        if split not in self._features:
            examples = self.read(split)
            features = self.task.spec.featurize(examples, self.tokenizer, self.max_seq_length)
            if note := self.task.spec.describe_truncation(features.num_truncated, len(examples), self.max_seq_length):
                print(f"note: {split}: {note}", flush=True)
            self._features[split] = features
        return self._features[split]
