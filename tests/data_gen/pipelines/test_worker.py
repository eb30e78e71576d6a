"""The tasks of a worker process."""

import dataclasses
import json
import pathlib
import shutil

import pytest

from data_gen.pipelines import worker
from data_gen.text import formats, token_store
from official_bert.tokenization.fast import FastTokenizer
from tests.data_gen.samples import Corpus, make_options
from tests.make import run_python


def test_workers_need_no_tensorflow(corpus: Corpus):
    code = (
        "import sys; from data_gen.pipelines import one_machine, worker;"
        "from official_bert.tokenization import fast;"
        f"fast.FastTokenizer({corpus[1]!r}).encode(['the value']);"
        "print(sorted({'tensorflow', 'tensorflow_text', 'keras'} & set(sys.modules)))"
    )
    done = run_python("-c", code, check=True)
    assert done.stdout == "[]\n"


def test_a_large_file_is_shared_and_a_line_in_it_is_named(
    corpus: Corpus, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worker, "_PART_BYTES", 2000)
    vocab = pathlib.Path(corpus[1]).read_text()
    text = tmp_path / "text.txt"
    lines = [line for path in corpus[0] for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines()]
    text.write_text("\n".join(lines) + "\n")
    options = make_options(([str(text)], corpus[1]), tmp_path / "out", input_format="sentences")
    folder = tmp_path / "work"
    (folder / "x").mkdir(parents=True)
    (folder / worker.VOCAB).write_text(vocab)
    (folder / worker.OPTIONS).write_text(json.dumps(dataclasses.asdict(options)))
    ranges = worker.Worker(str(folder)).do({"file": [0]})["ranges"]
    assert len(ranges) > 10
    for part in range(len(ranges)):
        worker.Worker(str(folder)).do({"part": [0, part]})
    parts = [worker.get_part_folder(str(folder), 0, part) for part in range(len(ranges))]
    token_store.join_parts(str(folder / "joined"), parts)
    (tmp_path / "whole").mkdir()
    documents = list(formats.read_documents(str(text), "sentences"))
    tokenizer = FastTokenizer(corpus[1])
    ids = token_store.choose_id_dtype(tokenizer.vocab)
    token_store.write_part(str(folder / "whole"), documents, tokenizer.encode, ids, [1])
    for name in (token_store.IDS, token_store.SENTENCES, token_store.DOCUMENTS):
        assert (folder / "joined" / name).read_bytes() == (folder / "whole" / name).read_bytes()
    content = text.read_bytes()
    text.write_bytes(content + b"the \xe9\n")  # in the last part only
    shutil.rmtree(parts[-1])
    (folder / f"part-0-{len(ranges) - 1}.json").unlink()
    with pytest.raises(worker.TextError, match=rf"text.txt, line {len(lines) + 1}: byte 0xe9 at column 5"):
        worker.Worker(str(folder)).do({"part": [0, len(ranges) - 1]})
