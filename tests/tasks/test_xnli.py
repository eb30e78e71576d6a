import pytest

from official_bert.errors import UserError
from official_bert.kinds.text_spec import TextExample
from official_bert.tasks.all_tasks import make_task
from official_bert.tasks.options import XNLI, XnliOptions
from official_bert.utils.bad_rows import BadRows
from tests.make import refusal

DEV = """language\tgold_label\tsentence1_binary_parse\tsentence1\tsentence2\tpromptID
ar\tneutral\t( a )\tكلب\tقط\t1
zh\tneutral\t( a )\t狗\t猫\t1
zh\tcontradiction\t( a )\t"日\t月\t1
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "multinli").mkdir()
    rows = ["premise\thypo\tlabel", "狗 跑\t猫\tcontradictory", "日\t月\tentailment"]
    (tmp_path / "multinli" / "multinli.train.zh.tsv").write_text("\n".join(rows) + "\n")
    (tmp_path / "xnli.dev.tsv").write_text(DEV)
    (tmp_path / "xnli.test.tsv").write_text(DEV)
    return tmp_path


def task_in(folder, **options):
    return make_task(XNLI, XnliOptions(data_dir=str(folder), **options))


def test_the_translated_training_data_and_the_rows_of_the_language_are_read(folder):
    task = task_in(folder)  # Chinese, as in the original
    assert task.head.labels == ("contradiction", "entailment", "neutral")
    assert task.read("train", BadRows()) == [TextExample("0", "狗 跑", "猫", 0), TextExample("1", "日", "月", 1)]
    dev = [TextExample("1", "狗", "猫", 2), TextExample("2", '"日', "月", 0)]
    assert [task.read(split, BadRows()) for split in ("dev", "test")] == [dev, dev]
    assert task_in(folder, language="ar").read("dev", BadRows()) == [TextExample("0", "كلب", "قط", 2)]


def test_what_is_missing_or_wrong_is_named(folder):
    with pytest.raises(UserError, match=r"multinli.train.de.tsv does not exist.*--data_dir"):
        task_in(folder, language="de").read("train", BadRows())
    told = refusal(task_in(folder, language="de").read, "dev", BadRows())
    assert "xnli.dev.tsv has no examples in --language=de, only in ar, zh" in told
    (folder / "xnli.dev.tsv").write_text(DEV.replace("contradiction", "maybe"))
    bad_rows = BadRows("skip")
    (folder / "xnli.test.tsv").write_text("language\tgold_label\tsentence1\tsentence2\nzh\tmaybe\ta\tb\n")
    told = refusal(task_in(folder).read, "test", bad_rows)
    assert "xnli.test.tsv has no examples in --language=zh" in told
    assert "1 bad row; the first: " in told
    assert "xnli.test.tsv, line 2: unknown label 'maybe'" in told
    assert "line 4: unknown label 'maybe'" in refusal(task_in(folder).read, "dev", BadRows())
    (folder / "xnli.dev.tsv").write_text(DEV.replace("狗", " "))
    assert "line 3: an empty text in sentence1 or sentence2" in refusal(task_in(folder).read, "dev", BadRows())
