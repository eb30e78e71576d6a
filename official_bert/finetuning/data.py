"""Reads the examples of a run's splits and converts them to features. Each split is read and tokenized only once."""

import dataclasses
from typing import Any

from official_bert.finetuning import feature_cache
from official_bert.kinds.features import Features
from official_bert.tasks.task import Task
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils.bad_rows import BadRows


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunData:
    """The examples and features of a task's splits, such as "train" and "dev". They are computed when first needed."""

    task: Task  # reads and tokenizes the examples
    tokenizer: FastTokenizer  # tokenizer of the model
    max_seq_length: int  # maximum sequence length
    bad_rows: BadRows  # collects rows that cannot be read
    cache_dir: str  # folder of the feature cache
    _examples: dict[str, list[Any]] = dataclasses.field(default_factory=dict)  # by split
    _digests: dict[str, str] = dataclasses.field(default_factory=dict)  # by split
    _features: dict[str, Features] = dataclasses.field(default_factory=dict)  # by split

    def read(self, split: str) -> list[Any]:
        """Returns the examples of a split."""
        if split not in self._examples:
            self._examples[split] = self.task.read(split, self.bad_rows)
        return self._examples[split]

    def digest(self, split: str) -> str:
        """Returns a digest of the examples of a split and of everything else that its features depend on."""
        if split not in self._digests:
            inputs = (self.task, self.read(split), self.tokenizer, self.max_seq_length)
            self._digests[split] = feature_cache.compute_digest(*inputs)
        return self._digests[split]

    def features(self, split: str) -> Features:
        """Returns the features of a split, if possible from the cache. Prints a note if examples are truncated."""
        if split not in self._features:
            examples = self.read(split)
            path = feature_cache.find_path(self.cache_dir, self.digest(split))
            if (features := feature_cache.read(path)) is None:
                features = self.task.spec.featurize(examples, self.tokenizer, self.max_seq_length)
                feature_cache.write(path, features)
            if note := self.task.spec.describe_truncation(features.num_truncated, len(examples), self.max_seq_length):
                print(f"note: {split}: {note}", flush=True)
            self._features[split] = features
        return self._features[split]
