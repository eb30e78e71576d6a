"""Apache Beam gives the very answers and vectors of one machine, in numbered files."""

import json
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from official_bert.checkpoints import finetuned, loading
from official_bert.checkpoints.loading import Loaded
from official_bert.commands import FEATURES, PREDICT
from official_bert.errors import UserError
from official_bert.export import saved_model
from official_bert.export.options import SavedModelOptions
from official_bert.inference import batch_prediction, feature_extraction, features, on_beam
from official_bert.inference.options import BatchPredictionOptions, BeamOptions, FeatureOptions
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.task_models import CLASSIFICATION
from official_bert.tokenization.exact import FullTokenizer
from official_bert.utils import files
from tests.conftest import ROOT, WORDS
from tests.export.exported_models import CONFIG, model_of, task_spec_of
from tests.inference.batch_models import export_batches

PORTABLE = ["--runner=PortableRunner", "--job_endpoint=embed", "--environment_type=LOOPBACK"]
TEXTS = ["the cat " * (number * 7 % 11) + f"sat {number}" for number in range(27)]


@pytest.fixture(scope="module")
def export_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    return export_batches(tmp_path_factory.mktemp("export"))


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch):
    """Groups of four rows, so that a few texts are several."""
    monkeypatch.setattr(batch_prediction, "BATCHES_AT_ONCE", 2)
    monkeypatch.setattr(features, "_BATCHES_AT_A_TIME", 2)


def write_texts(folder: pathlib.Path, texts: list[str] = TEXTS) -> str:
    """Writes texts as one file and as three of unequal sizes; returns the pattern of these."""
    rows = [json.dumps({"text": text}) + "\n" for text in texts]
    (folder / "all.jsonl").write_text("".join(rows))
    for number, (start, end) in enumerate([(0, 9), (9, 11), (11, len(rows))]):
        (folder / f"part{number}.jsonl").write_text("".join(rows[start:end]))
    return f"{folder}/part*.jsonl"


def joined(folder: pathlib.Path, name: str, count: int) -> bytes:
    stem, _, ending = name.rpartition(".")
    return b"".join((folder / f"{stem}-{i:05}-of-{count:05}.{ending}").read_bytes() for i in range(count))


def local(export_dir: str, folder: pathlib.Path) -> bytes:
    options = BatchPredictionOptions(export_dir, f"{folder}/all.jsonl", f"{folder}/local.jsonl", batch_size=2)
    batch_prediction.predict(options)
    return (folder / "local.jsonl").read_bytes()


def beam_options(export_dir: str, folder: pathlib.Path) -> BatchPredictionOptions:
    return BatchPredictionOptions(export_dir, f"{folder}/part*.jsonl", f"{folder}/out.jsonl", batch_size=2)


def test_shards_hold_the_answers_of_one_machine(export_dir: str, tmp_path: pathlib.Path):
    write_texts(tmp_path)
    told = on_beam.predict(beam_options(export_dir, tmp_path), 3, ["--direct_num_workers=2"])
    assert told.endswith("out-00000-of-00003.jsonl ...: of 27 texts")
    assert joined(tmp_path, "out.jsonl", 3) == local(export_dir, tmp_path)
    assert not list(tmp_path.glob("*error*")) + list(tmp_path.glob("*.writing-*"))


@pytest.mark.slow
def test_more_shards_than_groups_are_written_too_and_one_has_the_whole_name(export_dir: str, tmp_path: pathlib.Path):
    write_texts(tmp_path, TEXTS[:12])
    on_beam.predict(beam_options(export_dir, tmp_path), 5, [])
    assert joined(tmp_path, "out.jsonl", 5) == local(export_dir, tmp_path)
    one = BatchPredictionOptions(export_dir, f"{tmp_path}/part*.jsonl", f"{tmp_path}/one.jsonl", batch_size=2)
    on_beam.predict(one, 1, [])
    assert (tmp_path / "one.jsonl").read_bytes() == joined(tmp_path, "out.jsonl", 5)


def test_a_rerun_makes_the_missing_shards_alone(
    export_dir: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    write_texts(tmp_path)
    options, written = beam_options(export_dir, tmp_path), []
    write = on_beam._Prediction.write

    def stopping(self: Any, model: Any, first: int, rows: Any, path: str) -> None:
        if len(written) == 2:
            raise RuntimeError("the machine stopped")
        write(self, model, first, rows, path)
        written.append(path)

    with monkeypatch.context() as patch:
        patch.setattr(on_beam._Prediction, "write", stopping)
        with pytest.raises(RuntimeError, match="the machine stopped"):
            on_beam.predict(options, 4, [])
    before = {path: pathlib.Path(path).stat().st_ino for path in written}
    assert len(before) == 2
    assert on_beam.predict(options, 4, []).endswith("; 2 of 4 files from an earlier run")
    assert {path: pathlib.Path(path).stat().st_ino for path in written} == before
    assert joined(tmp_path, "out.jsonl", 4) == local(export_dir, tmp_path)
    assert on_beam.predict(options, 4, []).endswith("; 4 of 4 files from an earlier run")


def test_another_run_is_refused_and_changes_nothing(export_dir: str, tmp_path: pathlib.Path):
    write_texts(tmp_path)
    options = beam_options(export_dir, tmp_path)
    on_beam.predict(options, 2, [])
    before = joined(tmp_path, "out.jsonl", 2)
    with pytest.raises(UserError, match="is of a run with other num_shards; remove it and its shards"):
        on_beam.predict(options, 3, [])
    with open(tmp_path / "part1.jsonl", "a") as file:
        file.write('{"text": "more"}\n')
    with pytest.raises(UserError, match="is of a run with other inputs; remove it and its shards"):
        on_beam.predict(options, 2, [])
    (tmp_path / "out.jsonl.run.json").unlink()
    with pytest.raises(UserError, match="00000-of-00002.jsonl is there, and no .*run.json"):
        on_beam.predict(options, 2, [])
    assert joined(tmp_path, "out.jsonl", 2) == before


def test_wrong_rows_are_one_line_with_their_file(
    export_dir: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
    write_texts(tmp_path)
    with open(tmp_path / "part1.jsonl", "a") as file:
        file.write('{"txt": "b"}\n')
    with pytest.raises(UserError, match=r"^[^\n]*part1.jsonl, line 3: 'text' is nothing[^\n]*$"):
        on_beam.predict(beam_options(export_dir, tmp_path), 2, [])
    assert not list(tmp_path.glob("out*"))
    write_texts(tmp_path, [*TEXTS[:11], "refused", *TEXTS])  # the first row of its file
    with pytest.raises(UserError, match=r"part2.jsonl: the model cannot answer row 1 \(the header does not count\)"):
        on_beam.predict(beam_options(export_dir, tmp_path), 2, [])
    assert not [record for record in caplog.records if record.exc_info]


def test_paths_may_be_remote(export_dir: str, tmp_path: pathlib.Path):
    # TensorFlow's file system in memory stands for one on other machines.
    write_texts(tmp_path)
    for path in tmp_path.glob("part*"):
        files.copy(str(path), f"ram://prediction/{path.name}")
    remote = BatchPredictionOptions(export_dir, "ram://prediction/part*", "ram://prediction/out.jsonl", batch_size=2)
    on_beam.predict(remote, 2, [])
    shards = [files.read_bytes(f"ram://prediction/out-0000{number}-of-00002.jsonl") for number in range(2)]
    assert b"".join(shards) == local(export_dir, tmp_path)


@pytest.fixture
def init(tiny_config: Any, vocab_file: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a checkpoint, which is loaded as a small encoder."""
    loaded = Loaded(build_encoder(tiny_config, seed=0), tiny_config, FullTokenizer(vocab_file))
    monkeypatch.setattr(loading, "load", lambda *_, **__: loaded)
    return str(tmp_path / "model")


@pytest.mark.parametrize(("name", "changes"), [
    ("out.jsonl", {"output_format": "original"}),
    pytest.param("out.npy", {}, marks=pytest.mark.slow),
    pytest.param("out.npy", {"pooling": "mean"}, marks=pytest.mark.slow),
])  # fmt: skip
def test_shards_hold_the_vectors_of_one_machine(name: str, changes: dict, init: str, tmp_path: pathlib.Path):
    (tmp_path / "a.txt").write_text("".join(f"{text}\n" for text in TEXTS[:5]))
    (tmp_path / "b.txt").write_text("".join(f"{text}\n" for text in TEXTS[5:]))
    (tmp_path / "all").write_text("".join(f"{text}\n" for text in TEXTS))
    changes = {"layers": ["-1", "1"], "max_seq_length": 16, "batch_size": 2, **changes}
    feature_extraction.write_features(FeatureOptions(init, f"{tmp_path}/all", f"{tmp_path}/local-{name}", **changes))
    told = on_beam.write_features(FeatureOptions(init, f"{tmp_path}/[ab].txt", f"{tmp_path}/{name}", **changes), 2, [])
    assert told.endswith("of 27 texts")
    if name.endswith("npy"):
        shards = [np.load(tmp_path / f"out-0000{number}-of-00002.npy") for number in range(2)]
        np.testing.assert_array_equal(np.concatenate(shards), np.load(tmp_path / "local-out.npy"))
        if not changes.get("pooling"):
            tokens = [(tmp_path / f"out-0000{i}-of-00002.npy.tokens.jsonl").read_bytes() for i in range(2)]
            assert b"".join(tokens) == (tmp_path / "local-out.npy.tokens.jsonl").read_bytes()
    else:
        assert joined(tmp_path, name, 2) == (tmp_path / f"local-{name}").read_bytes()


@pytest.mark.parametrize(("arguments", "message"), [
    (["--num_shards=2"], "--num_shards=2 goes with --beam"),
    (["--", "--runner=DataflowRunner"], "unexpected argument '--runner=DataflowRunner'; options of Beam"),
])  # fmt: skip
def test_options_of_beam_want_the_switch(arguments: list[str], message: str):
    for command, flags in ((PREDICT, ["--export_dir=a"]), (FEATURES, ["--init=a"])):
        parsed = command.parse([*flags, "--input_file=b", "--output_file=c.jsonl", *arguments])
        assert isinstance(parsed[1], BeamOptions)
        with pytest.raises(UserError, match=message):
            command.main(*parsed)


@pytest.mark.parametrize(("shards", "arguments", "message"), [
    (0, [], "--num_shards=0; expected 1 or more"),
    (1, ["--runer=DataflowRunner"], "DirectRunner has no option --runer"),
])  # fmt: skip
def test_options_that_cannot_be_followed_are_refused(
    shards: int, arguments: list[str], message: str, export_dir: str, tmp_path: pathlib.Path
):
    write_texts(tmp_path)
    with pytest.raises(UserError, match=message):
        on_beam.predict(beam_options(export_dir, tmp_path), shards, arguments)
    assert not list(tmp_path.glob("out*"))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An export of a small classifier, whose answers differ from text to text."""
    folder = tmp_path_factory.mktemp("classifier")
    model, task_spec = model_of(CLASSIFICATION), task_spec_of(CLASSIFICATION)
    finetuned.save(f"{folder}/model", model, task_spec, CONFIG, "\n".join(WORDS) + "\n")
    return saved_model.export(SavedModelOptions(f"{folder}/model", f"{folder}/export"))


@pytest.mark.slow
def test_a_classifier_answers_on_the_portable_runner_as_on_one_machine(classifier: str, tmp_path: pathlib.Path):
    write_texts(tmp_path, [" ".join(WORDS[5 + number % 7 : 7 + number * 3 % 11]) for number in range(200)])
    on_beam.predict(beam_options(classifier, tmp_path), 3, PORTABLE)
    expected = [json.loads(line) for line in local(classifier, tmp_path).splitlines()]
    found = [json.loads(line) for line in joined(tmp_path, "out.jsonl", 3).splitlines()]
    assert len({str(answer["probabilities"]) for answer in expected}) > 20
    assert [answer["label"] for answer in found] == [answer["label"] for answer in expected]
    probabilities = [[answer["probabilities"] for answer in answers] for answers in (found, expected)]
    np.testing.assert_allclose(probabilities[0], probabilities[1], atol=1e-6)


@pytest.mark.slow
def test_two_processes_give_the_answers_of_one(export_dir: str, tmp_path: pathlib.Path, monkeypatch):
    monkeypatch.setattr(batch_prediction, "BATCHES_AT_ONCE", 16)  # as in the process that is started
    write_texts(tmp_path, TEXTS * 4)
    arguments = [
        sys.executable, "-m", "official_bert_cli", "predict", f"--export_dir={export_dir}", "--batch_size=2",
        f"--input_file={tmp_path}/part*.jsonl", f"--output_file={tmp_path}/out.jsonl", "--beam", "--num_shards=3",
        "--", "--direct_running_mode=multi_processing", "--direct_num_workers=2",
    ]  # fmt: skip
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "out-00000-of-00003.jsonl ...: of 108 texts" in done.stdout
    assert joined(tmp_path, "out.jsonl", 3) == local(export_dir, tmp_path)


@pytest.mark.slow
def test_vectors_on_the_portable_runner_are_those_of_one_machine(init: str, tmp_path: pathlib.Path):
    (tmp_path / "a.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    changes = {"layers": ["-1"], "pooling": "mean", "max_seq_length": 16, "batch_size": 2}
    feature_extraction.write_features(FeatureOptions(init, f"{tmp_path}/a.txt", f"{tmp_path}/local.npy", **changes))
    on_beam.write_features(FeatureOptions(init, f"{tmp_path}/a.txt", f"{tmp_path}/out.npy", **changes), 2, PORTABLE)
    shards = [np.load(tmp_path / f"out-0000{number}-of-00002.npy") for number in range(2)]
    np.testing.assert_array_equal(np.concatenate(shards), np.load(tmp_path / "local.npy"))
