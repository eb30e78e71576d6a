import numpy as np

from official_bert.finetuning.data import RunData
from official_bert.kinds.text_spec import TextExample
from official_bert.tasks import glue
from official_bert.tasks.options import GlueOptions
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils.bad_rows import BadRows

EXAMPLES = [TextExample("0", "the cat", "a dog", 1), TextExample("1", "sun", "mat", 0)]
TASK = glue.GlueTask("rte", GlueOptions())


def load_features(monkeypatch, folder, tokenizer, examples=EXAMPLES, length=12):
    """Returns the features of a run that reads these examples."""
    monkeypatch.setattr(TASK, "read", lambda split, bad_rows: examples, raising=False)
    data = RunData(
        task=TASK, tokenizer=tokenizer, max_seq_length=length, bad_rows=BadRows(), cache_dir=str(folder / "cache")
    )
    return data.features("train")


def test_features_are_kept_and_made_anew_when_anything_changes(vocab_file, tmp_path, monkeypatch):
    tokenizer = FastTokenizer(vocab_file)
    made, featurize = [], type(TASK.head).featurize

    def counting(head, *arguments):
        made.append(arguments[-1])
        return featurize(head, *arguments)

    monkeypatch.setattr(type(TASK.head), "featurize", counting)

    def get(examples=EXAMPLES, length=12, tokenizer=tokenizer):
        return load_features(monkeypatch, tmp_path, tokenizer, examples, length)

    first, second = get(), get()
    assert len(made) == 1
    for name in ("input_ids", "segment_ids", "splits"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    np.testing.assert_array_equal(first.targets["labels"], second.targets["labels"])
    assert second.details["example"].tolist() == [0, 1]
    get(EXAMPLES[:1])
    get(length=11)
    get(tokenizer=FastTokenizer(vocab_file, do_lower_case=False))
    get(tokenizer=FastTokenizer(vocab_file, strip_accents=False))
    assert len(made) == 5


def test_damaged_features_are_made_anew(vocab_file, tmp_path, monkeypatch):
    tokenizer = FastTokenizer(vocab_file)

    def get():
        made = load_features(monkeypatch, tmp_path, tokenizer)
        return [each.tolist() for each in (made.input_ids, made.segment_ids, made.splits, made.targets["labels"])]

    right = get()
    (path,) = (tmp_path / "cache").iterdir()
    content = path.read_bytes()
    damaged = [b"", content[:20], content[:100], content[:-1]]
    damaged += [
        content[:place] + bytes([content[place] ^ 8]) + content[place + 1 :] for place in range(0, len(content), 211)
    ]
    for each in damaged:
        path.write_bytes(each)
        assert get() == right
