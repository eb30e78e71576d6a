"""Making records without the documents that contain evaluation texts."""

import csv
import dataclasses
import json
import pathlib
from typing import Any

import pytest

from data_gen.options import RecordOptions
from data_gen.pipelines import one_machine, run_plan
from data_gen.text import formats
from official_bert.utils import files
from tests.data_gen.samples import Corpus, contents, make_options
from tests.make import refusal, write_text

EVERY = 5  # documents; one of them is left out


@pytest.fixture(scope="module")
def documents(corpus: Corpus) -> list[list[str]]:
    return [each for path in corpus[0] for each in formats.read_documents(path, "sentences")][:40]


def run(corpus: Corpus, documents: list[list[str]], folder: pathlib.Path, **changes: Any) -> RecordOptions:
    """Returns the options of a run on a file of documents."""
    folder.mkdir()
    path = write_text(folder / "text.txt", "\n\n".join("\n".join(each) for each in documents))
    return make_options(([path], corpus[1]), folder / "out", input_format="sentences", **changes)


def evaluation_file(documents: list[list[str]], folder: pathlib.Path) -> str:
    """Writes an evaluation file whose texts are two sentences of every fifth document."""
    path = folder / "dev.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows([f"{each[0]}\n  {each[1]}" if len(each) > 1 else each[0], "x"] for each in documents[::EVERY])
    return str(path)


def records(options: RecordOptions) -> dict[str, bytes]:
    folder = pathlib.Path(options.output_file[0]).parent
    return {name: content for name, content in contents(folder).items() if "manifest" not in name}


@pytest.mark.parametrize("algorithm", ["fast", "reference"])
def test_records_are_those_of_the_other_documents(
    algorithm: str, corpus: Corpus, documents: list[list[str]], tmp_path: pathlib.Path
):
    changes: dict[str, Any] = {"algorithm": "reference", "num_shards": 1} if algorithm == "reference" else {}
    others = [each for number, each in enumerate(documents) if number % EVERY]
    plain = run(corpus, others, tmp_path / "others", **changes)
    one_machine.create_pretraining_data(plain)
    excluding = evaluation_file(documents, tmp_path)
    options = run(corpus, documents, tmp_path / "all", exclude_texts=[excluding], **changes)
    summary = one_machine.create_pretraining_data(options)
    assert records(options) == records(plain)
    assert summary.text_excluded == len(documents) - len(others)
    assert f"{summary.text_excluded} others left out because of --exclude_texts" in str(summary)
    described = json.loads((tmp_path / "all" / "out" / "out.manifest.json").read_text())
    digest = files.sha256(excluding)
    assert described["source"]["flags"]["exclude_texts"] == [{"file": "dev.csv", "sha256": digest}]
    assert described["statistics"]["text_excluded"] == summary.text_excluded
    assert "exclude_texts" not in (tmp_path / "others" / "out" / "out.manifest.json").read_text()
    assert one_machine.create_pretraining_data(options) == summary  # already complete
    pathlib.Path(excluding).write_text("text\nanother text of other characters\n")
    assert "--exclude_texts was [" in refusal(one_machine.create_pretraining_data, options)


def test_run_resumes_only_with_the_same_texts(
    corpus: Corpus,
    documents: list[list[str]],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
):
    excluding = evaluation_file(documents, tmp_path)
    options = run(corpus, documents, tmp_path / "run", exclude_texts=[excluding])
    with monkeypatch.context() as patch:
        patch.setattr(run_plan, "plan_run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            one_machine.create_pretraining_data(options)
    content = pathlib.Path(excluding).read_bytes()
    pathlib.Path(excluding).write_bytes(content + b"one more text of twenty characters,x\r\n")
    told = refusal(one_machine.create_pretraining_data, options)
    assert "contains the unfinished work of a different run (other text, --vocab_file, " in told
    told = refusal(one_machine.create_pretraining_data, dataclasses.replace(options, dupe_factor=7))
    assert "--dupe_factor was 2 and is 7)" in told
    pathlib.Path(excluding).write_bytes(content)
    assert one_machine.create_pretraining_data(options).text_excluded == len(documents[::EVERY])


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("algorithm", ["fast", "reference"])
def test_excluding_all_documents_is_an_error(algorithm: str, corpus: Corpus, tmp_path: pathlib.Path):
    sentence = "one sentence of this text"
    options = run(
        corpus, [[sentence], [sentence, "more"]], tmp_path / "run", algorithm=algorithm, num_shards=1,
        exclude_texts=[str(tmp_path / "dev.txt")],
    )  # fmt: skip
    (tmp_path / "dev.txt").write_text(sentence)
    assert "all documents (2) contain a text of --exclude_texts" in refusal(
        one_machine.create_pretraining_data, options
    )
