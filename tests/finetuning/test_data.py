import dataclasses

import pytest

from official_bert.finetuning.data import RunData
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.text_spec import TextExample
from official_bert.tasks.glue import GlueTask
from official_bert.tasks.options import GlueOptions
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils.bad_rows import BadRows
from tests.make import WORDS, write_vocab

EXAMPLES = [TextExample("0", "the cat", "a dog", 1), TextExample("1", "sun", "mat", 0)]


@pytest.fixture
def data(tokenizer) -> RunData:
    task = GlueTask("rte", GlueOptions())
    examples = {"train": EXAMPLES, "dev": EXAMPLES[:1]}
    return RunData(task=task, tokenizer=tokenizer, max_seq_length=12, bad_rows=BadRows(), _examples=examples)


def test_a_split_is_tokenized_once(data, monkeypatch):
    tokenized, featurize = [], ClassificationSpec.featurize
    monkeypatch.setattr(ClassificationSpec, "featurize", lambda *each: tokenized.append(each[1]) or featurize(*each))
    assert data.features("train") is data.features("train")
    assert len(data.features("dev")) == 1
    assert tokenized == [EXAMPLES, EXAMPLES[:1]]


def test_truncated_examples_are_counted_instead_of_windows(data, capsys):
    windows = dataclasses.replace(data, task=GlueTask("rte", GlueOptions(doc_stride=1)), max_seq_length=5)
    assert len(windows.features("train")) == 3
    assert "note: train: truncated to 1 token" in (printed := capsys.readouterr().out)
    assert printed.endswith(": 1 of 2 first texts\n")


def test_the_digest_changes_with_everything_that_features_depend_on(data, vocab_file, tmp_path):
    def digest(**changes) -> str:
        return dataclasses.replace(data, **changes).digest("train")

    shuffled = write_vocab(tmp_path / "other.txt", [*WORDS[:-2], WORDS[-1], WORDS[-2]])
    tokenizers = [FastTokenizer(vocab_file, **{name: False}) for name in ("do_lower_case", "strip_accents")]
    changed = [{"tokenizer": each} for each in (*tokenizers, FastTokenizer(shuffled))]
    changed += [{"task": GlueTask("rte", GlueOptions(doc_stride=2))}, {"max_seq_length": 11}]
    changed.append({"_examples": {"train": EXAMPLES[:1]}})
    assert len({digest(), *(digest(**each) for each in changed)}) == 7
    decided, settings = GlueTask("rte", GlueOptions()), {"temperature": 2.0, "thresholds": (0.1, 0.9)}
    decided.spec = dataclasses.replace(decided.spec, **settings)
    assert digest(task=decided) == digest()  # decision settings do not change the features
