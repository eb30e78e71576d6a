import dataclasses
from typing import Any

import pytest

from official_bert.finetuning import feature_cache
from official_bert.finetuning.data import RunData
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.features import Features
from official_bert.kinds.text_spec import TextExample
from official_bert.tasks.glue import GlueTask
from official_bert.tasks.options import GlueOptions
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils.bad_rows import BadRows
from tests.conftest import WORDS
from tests.make import write_vocab

EXAMPLES = [TextExample("0", "the cat", "a dog", 1), TextExample("1", "sun", "mat", 0)]


@pytest.fixture
def data(vocab_file, tmp_path) -> RunData:
    task, tokenizer, cache = GlueTask("rte", GlueOptions()), FastTokenizer(vocab_file), str(tmp_path / "cache")
    return RunData(task=task, tokenizer=tokenizer, max_seq_length=12, bad_rows=BadRows(), cache_dir=cache)


def load(data: RunData, examples: list[TextExample] = EXAMPLES, **changes: Any) -> Features:
    """Returns the features of a new run that reads these examples."""
    run = dataclasses.replace(data, _examples={"train": examples}, _digests={}, _features={}, **changes)
    return run.features("train")


def to_lists(features: Features) -> list[Any]:
    arrays = (features.input_ids, features.segment_ids, features.splits, features.targets["labels"])
    return [each.tolist() for each in (*arrays, features.details["example"])]


def test_cached_features_are_reused_until_anything_changes(data, vocab_file, tmp_path, monkeypatch):
    made, featurize = [], ClassificationSpec.featurize
    monkeypatch.setattr(ClassificationSpec, "featurize", lambda *each: made.append(each) or featurize(*each))
    assert to_lists(load(data)) == to_lists(load(data))
    feature_cache.write(str(tmp_path / "of_tokens"), dataclasses.replace(load(data), has_token_outputs=True))
    assert feature_cache.read(str(tmp_path / "of_tokens")).has_token_outputs
    assert len(made) == 1
    load(data, EXAMPLES[:1])
    load(data, max_seq_length=11)
    load(data, tokenizer=FastTokenizer(vocab_file, do_lower_case=False))
    load(data, tokenizer=FastTokenizer(vocab_file, strip_accents=False))
    load(data, tokenizer=FastTokenizer(write_vocab(tmp_path / "other.txt", [*WORDS[:-2], WORDS[-1], WORDS[-2]])))
    load(data, task=GlueTask("rte", GlueOptions(doc_stride=2)))
    assert len(made) == 7
    decided, settings = GlueTask("rte", GlueOptions()), {"temperature": 2.0, "thresholds": (0.1, 0.9)}
    decided.spec = dataclasses.replace(decided.spec, **settings)
    load(data, task=decided)  # decision settings do not change the features
    assert len(made) == 7


def test_damaged_cached_features_are_computed_again(data, tmp_path):
    right = to_lists(load(data))
    (path,) = (tmp_path / "cache").iterdir()
    content = path.read_bytes()
    for length in (0, 20, 100, len(content) - 1):
        path.write_bytes(content[:length])
        assert to_lists(load(data)) == right
    for place in range(0, len(content), 211):
        path.write_bytes(content[:place] + bytes([content[place] ^ 8]) + content[place + 1 :])
        assert to_lists(load(data)) == right
