import pytest

from official_bert.kinds.text_spec import TextExample
from official_bert.tasks.all_tasks import make_task
from official_bert.tasks.options import XNLI, XnliOptions
from official_bert.utils.bad_rows import BadRows
from tests.make import assert_rejected, write_text

DEV = """language\tgold_label\tsentence1_binary_parse\tsentence1\tsentence2\tpromptID
ar\tneutral\t( a )\tكلب\tقط\t1
zh\tneutral\t( a )\t狗\t猫\t1
zh\tcontradiction\t( a )\t"日\t月\t1
"""


def read(folder, split, dev=DEV, bad_rows=None, **options):
    """Reads a split of a folder with translated training data and `dev` as the two other splits."""
    translated = "premise\thypo\tlabel\n狗 跑\t猫\tcontradictory\n日\t月\tneutral\n"
    write_text(folder / "multinli/multinli.train.zh.tsv", translated)
    for name in ("dev", "test"):
        write_text(folder / f"xnli.{name}.tsv", dev)
    task = make_task(XNLI, XnliOptions(data_dir=str(folder), **options))
    assert task.spec.labels == ("contradiction", "entailment", "neutral")
    return task.read(split, bad_rows or BadRows())


def test_the_translated_training_data_and_the_rows_of_the_language_are_read(tmp_path):
    # Chinese, as in the original.
    assert read(tmp_path, "train") == [TextExample("0", "狗 跑", "猫", 0), TextExample("1", "日", "月", 2)]
    dev = [TextExample("1", "狗", "猫", 2), TextExample("2", '"日', "月", 0)]
    assert [read(tmp_path, split) for split in ("dev", "test")] == [dev, dev]
    blank = read(tmp_path, "test", DEV.replace("狗", " "))  # every row of the test data is predicted
    assert [each.text_a for each in blank] == [" ", '"日']
    assert read(tmp_path, "dev", language="ar") == [TextExample("0", "كلب", "قط", 2)]


_MAYBE = "language\tgold_label\tsentence1\tsentence2\nzh\tmaybe\ta\tb\n"


@pytest.mark.parametrize(("split", "options", "names"), [
    ("train", {"language": "de"}, ("multinli.train.de.tsv", "--data_dir")),
    ("dev", {"language": "de"}, ("xnli.dev.tsv", "--language=de", "ar, zh")),
    ("dev", {"dev": DEV.replace("contradiction", "maybe")}, ("xnli.dev.tsv", "line 4", "'maybe'", "neutral")),
    *[("dev", {"dev": DEV.replace(word, " ")}, ("dev.tsv", "line 3", "sentence1", "sentence2")) for word in "狗猫"],
    ("test", {"dev": _MAYBE, "bad_rows": BadRows("skip", silent=True)},
     ("xnli.test.tsv", "--language=zh", 1, "line 2", "'maybe'")),
])  # fmt: skip
def test_missing_and_invalid_files_are_named(split, options, names, tmp_path):
    assert_rejected(names, read, tmp_path, split, **options)
