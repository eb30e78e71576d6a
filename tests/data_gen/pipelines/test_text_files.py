"""The same documents give the same records in every text file format."""

import json
import lzma
import pathlib
from collections.abc import Sequence

import pytest

from data_gen.options import RecordOptions, VocabularyOptions
from data_gen.pipelines import one_machine
from data_gen.text import formats
from data_gen.vocabulary import learning
from official_bert.errors import UserError
from tests.data_gen.samples import Corpus, contents, make_options
from tests.stored_texts import STORED, parquet, prepare_tfds

STORES = ("jsonl", "xz", "tfds", *STORED)


@pytest.fixture(scope="module")
def texts(corpus: Corpus) -> list[str]:
    documents = [document for path in corpus[0] for document in formats.read_documents(path)]
    return ["\n".join(document) for document in documents[:40]]


@pytest.fixture(scope="module")
def records(corpus: Corpus, texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The records made from plain text."""
    folder = tmp_path_factory.mktemp("plain")
    path = folder / "plain.txt"
    path.write_text("\n\n".join(texts), encoding="utf-8")
    return make_and_read(make_options(([str(path)], corpus[1]), folder / "out", input_format="paragraphs"))


def make_and_read(options: RecordOptions) -> dict[str, bytes]:
    one_machine.create_pretraining_data(options)
    folder = pathlib.Path(options.output_file[0]).parent
    return {name: content for name, content in contents(folder).items() if "manifest" not in name}


def stored(store: str, folder: pathlib.Path, texts: Sequence[str], patch: pytest.MonkeyPatch) -> str:
    if store in STORED:
        return STORED[store](folder, texts)
    if store == "tfds":
        patch.setenv("TFDS_DATA_DIR", str(folder))
        return f"tfds:{prepare_tfds(folder, texts)}"
    path = folder / f"texts.{store}"
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    path.write_bytes(lzma.compress(lines) if store == "xz" else lines)
    return str(path)


@pytest.mark.parametrize("store", [
    pytest.param(store, marks=[pytest.mark.slow] if store == "tfds" else []) for store in STORES
])  # fmt: skip
def test_every_kind_of_file_gives_the_same_records(
    store: str,
    corpus: Corpus,
    texts: list[str],
    records: dict[str, bytes],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
):
    source = stored(store, tmp_path, texts, monkeypatch)
    assert make_and_read(make_options(([source], corpus[1]), tmp_path / "out")) == records


@pytest.mark.parametrize("store", ["tfds", *STORED])
def test_a_vocabulary_is_learned_from_them(
    store: str, texts: list[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    lines = stored("jsonl", tmp_path, texts, monkeypatch)
    plain = learning.learn(VocabularyOptions(input_file=[lines], vocab_file="none", vocab_size=200))
    source = stored(store, tmp_path, texts, monkeypatch)
    other = learning.learn(VocabularyOptions(input_file=[source], vocab_file="none", vocab_size=200))
    assert other.pieces == plain.pieces


def test_an_error_in_a_later_part_names_the_row_of_the_file(corpus: Corpus, tmp_path: pathlib.Path):
    many: list[str | None] = [f"{number} sentences of text.\n" * 8000 for number in range(20)]
    path = parquet(tmp_path, [*many, None])
    assert len(formats.find_ranges(path, "parquet", 2 << 20)) == 2
    for _ in range(2):
        with pytest.raises(UserError, match=r"texts.parquet, row 21: 'text' is null; expected text"):
            make_and_read(make_options(([path], corpus[1]), tmp_path / "out"))
        assert not list((tmp_path / "out").glob("*.tfrecord"))


def test_lines_of_several_sentences_stay_whole_as_in_the_original(
    corpus: Corpus, texts: list[str], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(text.replace("\n", " ") + "\nEnd." for text in texts), encoding="utf-8")
    assert formats.detect_format(str(path)) == "paragraphs"
    records = {
        layout: make_and_read(make_options(([str(path)], corpus[1]), tmp_path / layout, input_format=layout))
        for layout in ("auto", "sentences", "paragraphs")
    }
    assert "note: in 1 file most of the text is on lines of several sentences" in capsys.readouterr().out
    assert records["auto"] == records["sentences"] != records["paragraphs"]
    learning_options = VocabularyOptions(input_file=[str(path)], vocab_file="v")
    documents = list(formats.read_files("reading", [str(path)], learning_options))
    assert documents == list(formats.read_documents(str(path), "paragraphs"))
    assert "note" not in capsys.readouterr().out


def test_text_format_for_a_file_of_rows_is_rejected(corpus: Corpus, tmp_path: pathlib.Path):
    path = parquet(tmp_path, ["One.", "Two."])
    with pytest.raises(UserError, match=r"texts.parquet is a parquet file, but --input_format is jsonl"):
        make_and_read(make_options(([path], corpus[1]), tmp_path / "out", input_format="jsonl"))
    with pytest.raises(UserError, match=r"is a parquet file, which --algorithm=reference does not support"):
        make_and_read(make_options(([path], corpus[1]), tmp_path / "out", algorithm="reference", num_shards=1))
