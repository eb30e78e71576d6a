"""The tasks of a worker process."""

import pathlib

from data_gen.pipelines import worker
from data_gen.text import formats
from tests.data_gen.samples import contents, make_records
from tests.make import assert_rejected, run_python, write_text
from tests.stored_texts import parquet


def test_workers_need_no_tensorflow(corpus):
    code = (
        "import sys; from data_gen.pipelines import one_machine, worker;"
        "from official_bert.tokenization import fast;"
        f"fast.FastTokenizer({corpus[1]!r}).encode(['the value']);"
        "print(sorted({'tensorflow', 'tensorflow_text', 'keras'} & set(sys.modules)))"
    )
    assert run_python("-c", code, check=True).stdout == "[]\n"


def test_a_large_file_is_shared_and_a_line_or_row_in_it_is_named(corpus, tmp_path, monkeypatch):
    make_records(corpus, tmp_path / "whole")
    monkeypatch.setattr(worker, "_PART_BYTES", 2000)
    assert len(formats.find_ranges(corpus[0][0], "sentences", 2000)) > 10
    make_records(corpus, tmp_path / "parts")
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    text = pathlib.Path(corpus[0][0]).read_bytes() + b"\nthe \xe9\n"  # in the last part only
    path, line = write_text(tmp_path / "text.txt", text), text.count(b"\n")
    names = (path, f"line {line}", "0xe9", "column 5")
    assert_rejected(names, make_records, ([path], corpus[1]), tmp_path / "bad", input_format="sentences")
    path = parquet(tmp_path, [*["some text. " * 300] * 20, None])
    assert len(formats.find_ranges(path, "parquet", 2000)) > 1
    for _ in range(2):
        assert_rejected((path, "row 21", "'text'", "null"), make_records, ([path], corpus[1]), tmp_path / "bad")
    assert not contents(tmp_path / "bad")
