"""Apache Beam makes the very files that one machine makes."""

import gzip
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import tensorflow as tf

from data_gen.options import RecordOptions
from data_gen.pipelines import beam, beam_job, beam_steps, one_machine, run_plan, shuffle
from data_gen.text import python_prose
from official_bert.errors import UserError
from official_bert.tokenization.exact import SPECIAL_TOKENS
from official_bert.utils import files
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Three files of real prose, of unequal sizes, one of them compressed, and a vocabulary of letters."""
    folder = tmp_path_factory.mktemp("text")
    documents = [content for _, content in python_prose.reference_documents()]
    for number, count in enumerate((20, 4, 40)):
        content = "\n\n".join(document.replace("\n\n", "\n") for document in documents[number::3][:count])
        packed = gzip.compress(content.encode()) if number == 2 else content.encode()
        (folder / f"text{number}.txt").write_bytes(packed)
    letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    pieces = [*SPECIAL_TOKENS, *letters, *("##" + letter for letter in letters)]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return folder


def options_for(text: pathlib.Path, folder: str | pathlib.Path, **changes: object) -> RecordOptions:
    values = {
        "input_file": [str(text / "text*.txt")],
        "output_file": [f"{folder}/out.tfrecord"],
        "vocab_file": str(text / "vocab.txt"),
        "max_seq_length": 32,
        "max_predictions_per_seq": 5,
        "dupe_factor": 2,
        "num_shards": 3,
        "block_tokens": 20_000,
        **changes,
    }
    return RecordOptions(**values)  # type: ignore[arg-type]


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def one(text: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with what one machine makes."""
    folder = tmp_path_factory.mktemp("one")
    one_machine.create_pretraining_data(options_for(text, folder))
    return folder


def test_beam_makes_the_files_of_one_machine(
    text: pathlib.Path, one: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_plan, "_BUCKET_BYTES", 1e5)  # so that shards have several buckets
    beam.create_pretraining_data(options_for(text, tmp_path), [])
    made = contents(tmp_path)
    assert len(made) == 4
    assert made == contents(one)


@pytest.mark.parametrize(
    ("changes", "workers"),
    [
        (
            {"gzip": True, "do_whole_word_mask": True, "dupe_factor": 1, "sentence_objective": "none"},
            ["--direct_running_mode=multi_threading", "--direct_num_workers=3"],
        ),
        (
            {
                "num_shards": 1,
                "shard_size_mb": 1,
                "input_format": "paragraphs",
                "masking": "dynamic",
                "masking_rates": "80/0/20",
            },
            [],
        ),
    ],
)
def test_beam_makes_the_files_of_one_machine_with_other_flags(
    text: pathlib.Path, tmp_path: pathlib.Path, changes: dict[str, object], workers: list[str]
):
    summary = one_machine.create_pretraining_data(options_for(text, tmp_path / "one", num_workers=1, **changes))
    assert beam.create_pretraining_data(options_for(text, tmp_path / "beam", **changes), workers) == summary
    assert contents(tmp_path / "beam") == contents(tmp_path / "one")


def test_beam_makes_the_files_of_one_machine_from_wikipedia(test_data: pathlib.Path, tmp_path: pathlib.Path):
    for name in ("wiki_00", "wiki_07"):
        whole = (test_data / "corpus" / "enwiki" / name).read_text(encoding="utf-8")[:120_000]
        (tmp_path / name).write_text(whole[: whole.rindex("</doc>")] + "</doc>\n", encoding="utf-8")
    changes = {
        "input_file": [str(tmp_path / "wiki_*")],
        "vocab_file": str(test_data / "vocab" / "bert-base-multilingual-cased-vocab.txt"),  # ids of more than 16 bits
        "do_lower_case": False,
    }
    summary = one_machine.create_pretraining_data(options_for(tmp_path, tmp_path / "one", num_workers=1, **changes))
    assert summary.text_documents >= 2
    assert beam.create_pretraining_data(options_for(tmp_path, tmp_path / "beam", **changes), []) == summary
    assert contents(tmp_path / "beam") == contents(tmp_path / "one")


@pytest.mark.slow
def test_processes_make_the_files_of_one_machine(text: pathlib.Path, one: pathlib.Path, tmp_path: pathlib.Path):
    arguments = [
        sys.executable, "-m", "official_bert_cli", "make-records-beam", f"--input_file={text}/text*.txt",
        f"--output_file={tmp_path}/beam/out.tfrecord", f"--vocab_file={text}/vocab.txt", "--max_seq_length=32",
        "--max_predictions_per_seq=5", "--dupe_factor=2", "--num_shards=3", "--block_tokens=20000",
        "--", "--direct_running_mode=multi_processing", "--direct_num_workers=2",
    ]  # fmt: skip
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "beam") == contents(one)


def test_paths_may_be_remote(
    text: pathlib.Path, one: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    # TensorFlow's file system in memory stands for one on other machines.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for path in text.iterdir():
        files.copy(str(path), f"ram://beam/in/{path.name}")
    remote = options_for(
        text, "ram://beam/out", input_file=["ram://beam/in/text*"], vocab_file="ram://beam/in/vocab.txt"
    )
    beam.create_pretraining_data(remote, [])
    made = {path.rpartition("/")[2]: files.read_bytes(path) for path in tf.io.gfile.glob("ram://beam/out/*")}
    assert made == contents(one)
    fetched = next(path for path in tmp_path.glob("official_bert-*") if path.is_dir())
    beam_job._remove(str(fetched))  # as at the process' end
    assert not fetched.exists()


def test_shards_without_records_are_written_too(text: pathlib.Path, tmp_path: pathlib.Path):
    (tmp_path / "one.txt").write_text("a single sentence\n")
    changes = {"input_file": [str(tmp_path / "one.txt")], "num_shards": 9}
    one_machine.create_pretraining_data(options_for(text, tmp_path / "one", num_workers=1, **changes))
    beam.create_pretraining_data(options_for(text, tmp_path / "beam", **changes), [])
    made = contents(tmp_path / "beam")
    assert len(made) == 10
    assert b"" in made.values()
    assert made == contents(tmp_path / "one")


def test_an_error_of_a_worker_is_one_line_and_nothing_is_left(
    text: pathlib.Path, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"good\nb\xffd\n")
    changes = {"input_file": [str(text / "text*.txt"), str(bad)]}
    with pytest.raises(UserError, match=r"^[^\n]*bad\.txt, line 2: byte 0xff at column 2 is not UTF-8[^\n]*$"):
        beam.create_pretraining_data(options_for(text, tmp_path / "out", **changes), [])
    assert not [record for record in caplog.records if record.exc_info]
    assert contents(tmp_path / "out") == {}
    bad.write_bytes(b"\n\n")
    with pytest.raises(UserError, match="the input holds no text"):
        beam.create_pretraining_data(options_for(text, tmp_path / "out", input_file=[str(bad)]), [])


def test_a_complete_run_is_not_done_again_and_another_one_is_refused(
    text: pathlib.Path, one: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    before = contents(one)
    assert beam.create_pretraining_data(options_for(text, one), []).instances > 1000
    assert "complete already" in capsys.readouterr().out
    with pytest.raises(UserError, match="describes records made from other flags"):
        beam.create_pretraining_data(options_for(text, one, random_seed=5), [])
    assert contents(one) == before


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({"algorithm": "reference", "num_shards": 1}, [], "--algorithm=reference runs on one machine alone"),
        ({"num_workers": 1000}, [], "--num_workers is for one machine"),
        ({}, ["--runer=DataflowRunner"], "DirectRunner has no option --runer"),
        ({}, ["--runner=Nonsense"], "Beam refuses its options: Unexpected pipeline runner: Nonsense"),
    ],
)
def test_options_that_cannot_be_followed_are_refused(
    text: pathlib.Path, tmp_path: pathlib.Path, changes: dict[str, object], arguments: list[str], message: str
):
    with pytest.raises(UserError, match=message):
        beam.create_pretraining_data(options_for(text, tmp_path / "out", **changes), arguments)
    assert not list(tmp_path.glob("out/*"))


def test_instances_of_equal_keys_stand_in_the_order_of_their_blocks(tmp_path: pathlib.Path):
    layout = shuffle.Layout(4, 1, np.dtype("<u2"), 1)
    rows = np.zeros(6, layout.row)
    rows["key"] = [5, 5, 1, 5, 5, 0]
    rows["length"] = range(6)
    (tmp_path / "rows-0").write_bytes(rows.tobytes())
    (tmp_path / "blocks-0").write_bytes(np.array([7, 7, 7, 2, 2, 9], "<i8").tobytes())
    assert beam_steps._sorted(str(tmp_path), 0, layout)["length"].tolist() == [5, 2, 3, 4, 0, 1]
    assert len(beam_steps._sorted(str(tmp_path), 1, layout)) == 0
