"""Models for ONNX Runtime in the server, and the server without TensorFlow."""

import asyncio
import concurrent.futures
import json
import os
import pathlib
import shutil
import sys
import threading
from unittest import mock

import numpy as np
import pytest

from official_bert.checkpoints import checksums
from official_bert.export.options import ONNX, SAVED_MODEL
from official_bert.inference import backends, exports, reference_answers
from official_bert.inference.onnx_model import OnnxPredictor
from official_bert.kinds.names import DEFAULT_SIGNATURE, MULTIPLE_CHOICE, QUESTION_ANSWERING, TAGGING
from official_bert.serving import batching, metrics
from official_bert.serving.check_export import check
from official_bert.serving.models import Models
from official_bert.serving.options import TOKEN_VARIABLE, CheckOptions, ServingOptions
from tests.export.exported_models import assert_answers
from tests.make import ROOT, assert_mentions, assert_rejected, refusal, run_python, write_rows, write_text
from tests.serving.serving_client import eventually, make_request, read_metric, running, sent

TEXT = "the cat sat on the mat"
LONG = "the cat sat on a mat , and the dog ran . " * 20  # dozens of windows

# Runs predict and the server only, and prints imported modules that should not be imported.
ALONE = """
import sys
from official_bert.commands import PREDICT, SERVE
from official_bert.serving import server
from tests.serving.serving_client import running

folder, work = sys.argv[1:]
flags = [f"--export_dir={folder}", f"--input_file={work}/texts.jsonl", f"--output_file={work}/answers.jsonl"]
PREDICT.main(*PREDICT.parse(flags))
with running({"m": folder}) as (_, client):
    print(client.predict("m", {"instances": ["the cat sat on the mat"]}).body.decode())
server.Server = print  # the command has no further work before it starts the server
try:
    SERVE.main(*SERVE.parse([f"--model=m={folder}"]))
except AttributeError:
    print(sorted({name.split(".")[0] for name in sys.modules} & {"tensorflow", "keras", "tensorflow_text", "onnx"}))
"""


@pytest.fixture(scope="module")
def tagger(export_kind) -> pathlib.Path:
    """The folder of an export with one version."""
    return pathlib.Path(export_kind(TAGGING, ONNX)).parent


def test_neither_the_server_nor_predict_imports_tensorflow_or_keras(tagger: pathlib.Path, tmp_path: pathlib.Path):
    write_rows(tmp_path / "texts.jsonl", [{"text": TEXT}])
    done = run_python("-c", ALONE, str(tagger), str(tmp_path))
    assert done.returncode == 0, done.stderr
    *_, answer, _, imported = done.stdout.splitlines()
    assert imported == "[]"
    (served,) = json.loads(answer)["predictions"]
    assert served["words"] == TEXT.split()


@pytest.mark.slow
def test_an_onnx_model_has_the_signature_of_a_saved_model(export_kind):
    folders = [export_kind(MULTIPLE_CHOICE, name) for name in (ONNX, SAVED_MODEL)]
    onnx, tensorflow = map(backends.load_predictor, folders)
    assert (onnx.parallel_batches, tensorflow.parallel_batches) == (1, 2)  # each uses all cores
    for folder, model in zip(folders, (onnx, tensorflow), strict=True):
        reference_answers.check_answers(folder, model)
    ours, theirs = (model.signatures[DEFAULT_SIGNATURE] for model in (onnx, tensorflow))
    assert ours.inputs == theirs.inputs
    dtypes = [[(name, output.dtype) for name, output in each.outputs.items()] for each in (ours, theirs)]
    assert dtypes[0] == dtypes[1]


def test_threads_of_an_onnx_model_leave_room_for_parallel_batches(tagger: pathlib.Path):
    cores = len(os.sched_getaffinity(0))
    for threads, workers, parallel_batches in ((None, 1, 1), (1, 3, min(2, cores))):
        model = backends.load_predictor(str(tagger / "1"), threads, workers)
        assert isinstance(model, OnnxPredictor)
        assert model._session.get_session_options().intra_op_num_threads == (threads or cores)
        assert model.parallel_batches == parallel_batches
        assert (model._pool._max_workers if model._pool else 1) == workers


def test_a_runtime_with_wrong_batch_answers_is_rejected(tagger: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    folder = str(tagger / "1")
    model, run = backends.load_predictor(folder), OnnxPredictor.run
    reference_answers.check_answers(folder, model)
    monkeypatch.setattr(
        OnnxPredictor, "run", lambda *given: {name: np.roll(each, 1, axis=0) for name, each in run(*given).items()}
    )
    assert_rejected((f"{folder}/{exports.REPLAY_FILE}", "batch"), reference_answers.check_answers, folder, model)


@pytest.mark.parametrize(("before", "after"), [(None, "1"), ("0", "0")])
def test_missing_packages_are_named_and_telemetry_is_off_by_default(before, after, tagger, tmp_path, monkeypatch):
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY")
    if before:
        monkeypatch.setenv("ORT_DISABLE_TELEMETRY", before)
    # The variable has an effect only if it is set before the import.
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert_rejected(("onnxruntime", f"'{ROOT}[serve-onnx]'"), backends.load_predictor, str(tagger / "1"))
    assert os.environ["ORT_DISABLE_TELEMETRY"] == after
    (tmp_path / exports.GRAPH_FILE).touch()
    monkeypatch.delitem(sys.modules, "official_bert.inference.saved_model", raising=False)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    names = (tmp_path, "tensorflow", f"'{ROOT}[serve]'", "--format=onnx")
    assert_rejected(names, backends.load_predictor, str(tmp_path))


def test_short_texts_of_several_requests_are_computed_in_one_call(tagger: pathlib.Path, monkeypatch):
    model = OnnxPredictor(str(tagger / "1"))
    requests = [exports.to_columns({"text": texts}) for texts in (["a cat"], ["the cat sat", ""])]
    expected = [model.run(columns) for columns in requests]
    run = mock.Mock(wraps=model.run)
    monkeypatch.setattr(model, "run", run)
    rows = [model.preprocess(DEFAULT_SIGNATURE, columns) for columns in requests]
    assert [[each.tokens for each in texts] for texts in rows] == [[[5]], [[11], [0]]]  # Bytes.
    outputs = iter(model.compute([(each, 0) for texts in rows for each in texts]))
    assert [columns["text"].tolist() for (columns,), _ in run.call_args_list] == [["a cat", "the cat sat", ""]]
    for part, answers in zip(rows, expected, strict=True):
        assert_answers(exports.join_rows([model.postprocess(row, [next(outputs)]) for row in part]), answers, atol=1e-5)


def test_windows_of_long_texts_are_computed_in_several_batches(tagger: pathlib.Path):
    texts = [LONG, "a cat", LONG[::-1], ""]
    with running({"m": tagger}, max_batch_tokens=50) as (_, client):
        answer = client.predict("m", {"inputs": texts})
        batches, windows = (read_metric(client, f"official_bert_batch_size_{name}", "m") for name in ("count", "sum"))
    assert answer.status == 200
    assert_answers(answer.json["outputs"], OnnxPredictor(str(tagger / "1")).run(exports.to_columns({"text": texts})))
    assert windows > 40
    assert windows / 3 <= batches < windows  # windows have 20 tokens, and the short texts fewer


def test_a_request_of_too_many_tokens_is_refused_before_all_of_it_is_tokenized(tagger: pathlib.Path, monkeypatch):
    with running({"m": tagger}, max_tokens=2000) as (server, client):
        preprocess = mock.Mock(wraps=server.models["m"].available[0].model.preprocess)
        monkeypatch.setattr(OnnxPredictor, "preprocess", preprocess)
        client.predict("m", {"instances": [LONG * 8] * 40}).assert_rejected(413, 1, 40, 2000, "--max_tokens")
        assert [len(columns["text"]) for (_, columns), _ in preprocess.call_args_list] == [1]
        assert client.predict("m", {"instances": [LONG]}).status == 200


def test_a_long_text_delays_nobody_and_is_cancelled_with_its_client(tagger: pathlib.Path, monkeypatch):
    compute, opened, computed = OnnxPredictor.compute, threading.Semaphore(0), list[int]()

    def wait(self, rows):
        computed.append(len(rows))
        assert opened.acquire(timeout=60)
        return compute(self, rows)

    with (
        running({"m": tagger}, max_batch_tokens=20, timeout_seconds=3600.0) as (_, client),
        concurrent.futures.ThreadPoolExecutor(1) as threads,
    ):

        def wait_for_queue(count: int) -> bool:
            return eventually(lambda: read_metric(client, "official_bert_waiting", "m") == count)

        monkeypatch.setattr(OnnxPredictor, "compute", wait)
        monkeypatch.setattr(batching, "_SHORT_SECONDS", 0)  # the event loop does not compute, so it never waits
        with sent(client, make_request("m", {"instances": [LONG * 4]})):
            assert eventually(lambda: len(computed) == 1)
            other = threads.submit(client.predict, "m", {"instances": ["a cat"]})
            assert wait_for_queue(2)
            opened.release(2)  # the window that is being computed, and the other text
            assert other.result().status == 200
            assert eventually(lambda: len(computed) == 3)
        assert wait_for_queue(1)
        opened.release()  # the window that was being computed when the client disconnected
        assert wait_for_queue(0)
        opened.release(200)
        assert client.predict("m", {"instances": ["a cat"]}).status == 200
    assert computed == [1, 1, 1, 1]


@pytest.fixture(scope="module")
def exported(export_kind) -> pathlib.Path:
    """The export folder of a question answering model, the kind with the most outputs."""
    return pathlib.Path(export_kind(QUESTION_ANSWERING, ONNX)).parent


@pytest.fixture
def other(exported: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """The same export with different stored answers."""
    folder = shutil.copytree(exported, tmp_path / "exports")
    path = folder / "1" / exports.REPLAY_FILE
    content = json.loads(path.read_text())
    content["answers"]["start"] = [start + 1 for start in content["answers"]["start"]]
    content["margins"] = [1.0] * len(content["margins"])
    path.write_text(json.dumps(content))
    (folder / "1" / "checksums.json").unlink()
    return folder


def test_check_export_reproduces_the_stored_answers(exported: pathlib.Path, other: pathlib.Path):
    count = len(reference_answers.read(str(exported / "1")))
    assert check(CheckOptions(), str(exported)).startswith(f"{exported} answers {count} texts as predict did when")
    first, *lines = refusal(check, CheckOptions(), str(other)).split("\n  ")
    assert_mentions(first, other)
    assert (len(lines), lines[-1]) == (6, f"and {count + reference_answers.TOGETHER - 5} more")
    assert_mentions(lines[0], '{"question"')
    (other / "1" / exports.REPLAY_FILE).unlink()
    assert_rejected((other / "1", exports.REPLAY_FILE), check, CheckOptions(), str(other))
    assert str(exported / "1" / exports.REPLAY_FILE) in exports.list_model_files(str(exported / "1"))  # has a checksum


def test_check_export_sends_the_token(exported: pathlib.Path, other: pathlib.Path, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    with running({"questions": exported}) as (_, client):
        url = f"{client.url}/v1/models/questions"
        for place in (f"{url}/", f"{url}/versions/1:predict"):
            assert "texts as predict did" in check(CheckOptions(str(exported)), place)
        assert_rejected((url, "start"), check, CheckOptions(str(other)), url)
        checksums.write(str(other / "1"), [exports.VOCAB_FILE], {})
        write_text(other / "1" / exports.VOCAB_FILE, "damaged")
        assert_rejected(other / "1" / exports.VOCAB_FILE, check, CheckOptions(str(other)), url)
        assert_rejected(('{"question"', 404), check, CheckOptions(str(exported)), f"{client.url}/v1/models/none")
        monkeypatch.delenv(TOKEN_VARIABLE)
        assert_rejected((f"{url}:predict", 401, TOKEN_VARIABLE), check, CheckOptions(str(exported)), url)
    assert_rejected((f"{url}:predict", "http://HOST:PORT/v1/models/NAME"), check, CheckOptions(str(exported)), url)
    assert_rejected((url, "--export_dir"), check, CheckOptions(), url)
    assert_rejected(("--export_dir", "URL", exported), check, CheckOptions(str(exported)), str(exported))


def test_a_new_version_with_different_answers_does_not_replace_the_old_one(exported, other, tmp_path: pathlib.Path):
    (other / "1").rename(tmp_path / "2")
    shutil.copytree(exported / "1", other / "1")
    models = Models(ServingOptions([f"m={other}"], threads=3), metrics.Metrics())
    asyncio.run(models["m"].refresh())
    assert vars(models["m"].available[0].model)["_session"].get_session_options().intra_op_num_threads == 3
    (tmp_path / "2").rename(other / "2")
    for _ in range(2):  # an export without checksums is loaded after two unchanged refreshes
        asyncio.run(models["m"].refresh())
    models.pools.shut_down()
    assert [version.number for version in models["m"].available] == [1]
    error = models["m"].versions[2].error
    assert_mentions(error, other / "2" / exports.REPLAY_FILE, '{"question"')
    assert "\n" not in error
