"""The examples of a run and their features, each read and made once."""

import dataclasses
from typing import Any

from official_bert.finetuning.feature_cache import features_of
from official_bert.kinds.features import Features
from official_bert.tasks.task import Task
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils.bad_rows import BadRows


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunData:
    """What a task reads, and what the model reads of it."""

    task: Task  # it reads and featurizes
    tokenizer: FastTokenizer  # for the examples' texts
    max_seq_length: int  # the longest sequence, in tokens
    bad_rows: BadRows  # gets the rows that cannot be read
    cache_dir: str  # folder of features that were made before
    _examples: dict[str, list[Any]] = dataclasses.field(default_factory=dict)  # by split
    _features: dict[str, Features] = dataclasses.field(default_factory=dict)  # likewise

    def read(self, split: str) -> list[Any]:
        """Returns the examples of a part."""
        if split not in self._examples:
            self._examples[split] = self.task.read(split, self.bad_rows)
        return self._examples[split]

    def features(self, split: str) -> Features:
        """Returns the features of a part's examples, from the cache where it has them; says what was cut."""
        if split not in self._features:
            examples = self.read(split)
            features = features_of(self.task, examples, self.tokenizer, self.max_seq_length, self.cache_dir)
            if note := self.task.head.cut_note(features.cut, len(examples), self.max_seq_length):
                print(f"note: {split}: {note}", flush=True)
            self._features[split] = features
        return self._features[split]
