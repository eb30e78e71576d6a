"""Making records without the documents that contain evaluation texts."""

import csv
import json

import pytest

from data_gen.pipelines.summary import describe
from data_gen.text import formats
from official_bert.utils import files
from tests.data_gen.samples import contents, make_records
from tests.make import assert_rejected, write_text


@pytest.mark.parametrize("algorithm", ["fast", "reference"])
def test_records_contain_only_the_remaining_documents(algorithm, corpus, tmp_path):
    documents = list(formats.read_documents(corpus[0][0], "sentences"))
    others = [each for number, each in enumerate(documents) if number % 5]
    excluding = tmp_path / "dev.csv"
    with open(excluding, "w", newline="", encoding="utf-8") as file:
        rows = [[f"{each[0]}\n  {each[1]}", "x"] for each in documents[::5]]
        csv.writer(file).writerows([["text", "label"], *rows])

    def make(name: str, documents: list[list[str]], **changes: object):
        text = write_text(tmp_path / f"{name}.txt", "\n\n".join("\n".join(each) for each in documents))
        flags = {"algorithm": algorithm, "num_shards": 1, "input_format": "sentences", **changes}
        return make_records(([text], corpus[1]), tmp_path / name, **flags)

    make("others", others)
    summary = make("all", documents, exclude_texts=[str(excluding)])
    assert contents(tmp_path / "all", "*.tfrecord") == contents(tmp_path / "others", "*.tfrecord")
    assert summary["text_excluded"] == len(documents) - len(others)
    assert f"{summary['text_excluded']} more left out because of --exclude_texts" in describe(summary, 2)
    described = json.loads((tmp_path / "all" / "out.manifest.json").read_text())
    digest = files.sha256(str(excluding))
    assert described["source"]["flags"]["exclude_texts"] == [{"file": "dev.csv", "sha256": digest}]
    assert described["statistics"]["text_excluded"] == summary["text_excluded"]
    assert "exclude_texts" not in (tmp_path / "others" / "out.manifest.json").read_text()
    assert make("all", documents, exclude_texts=[str(excluding)]) == summary  # already complete
    assert_rejected((1, "--exclude_texts"), make, "none", documents[:1], exclude_texts=[str(excluding)])
