"""Models for ONNX Runtime in the server, and the server without TensorFlow."""

import asyncio
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from official_bert.errors import UserError
from official_bert.export.options import ONNX, SAVED_MODEL
from official_bert.inference import exports, loading
from official_bert.inference.onnx_model import OnnxPredictor
from official_bert.inference.predictor import Predictor, Row
from official_bert.kinds.names import DEFAULT_SIGNATURE, MULTIPLE_CHOICE, TAGGING
from official_bert.serving.metrics import Metrics
from official_bert.serving.models import Models
from official_bert.serving.options import Options
from tests.conftest import ROOT
from tests.export.exported_models import CHOICES, export, save_finetuned
from tests.serving.serving_client import eventually, make_head, running, sent

TEXT = "the cat sat on the mat"

# Runs the server and predict only, and prints imported modules that should not be imported.
ALONE = """
import json, sys, threading, urllib.request
from official_bert.commands import PREDICT, SERVE
from official_bert.inference.options import BatchPredictionOptions, ShardOptions
from official_bert.serving import server
folder, work = sys.argv[1:]
PREDICT.main(BatchPredictionOptions(folder, f"{work}/texts.jsonl", f"{work}/answers.jsonl"), ShardOptions())
started = threading.Event()
class Server(server.Server):
    def __init__(self, options):
        super().__init__(options)
        threading.Thread(target=self.ask, daemon=True).start()
    def ask(self):
        while not self.models.ready:
            started.wait(0.05)
        body = json.dumps({"instances": ["the cat sat on the mat"]}).encode()
        request = urllib.request.Request(f"{self.url}/v1/models/m:predict", body)
        print(urllib.request.urlopen(request).read().decode())
        self.loop.call_soon_threadsafe(self.stop)
    async def run(self):
        import asyncio
        self.loop = asyncio.get_running_loop()
        await super().run()
server.Server = Server
SERVE.main(SERVE.parse([f"--model=m={folder}", "--port=0"])[0])
print(sorted({name.split(".")[0] for name in sys.modules} & {"tensorflow", "keras", "tensorflow_text", "onnx"}))
"""


def compute_answers(model: Predictor, inputs: dict[str, Any]) -> dict[str, Any]:
    """Returns the answers of a model that computes all rows together."""
    instances = model.prepare(DEFAULT_SIGNATURE, inputs)
    outputs = iter(model.compute([(each, number) for each in instances for number in range(len(each.tokens))]))
    return exports.join_rows([model.finish(each, [next(outputs) for _ in each.tokens]) for each in instances])


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The folder of an export with one version."""
    folder = tmp_path_factory.mktemp("tagger")
    model = save_finetuned(folder / "model", TAGGING)
    return pathlib.Path(export(model, folder / "out", ONNX)).parent


def test_neither_the_server_nor_predict_imports_tensorflow_or_keras(tagger: pathlib.Path, tmp_path: pathlib.Path):
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": TEXT}) + "\n")
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(tagger), str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    *_, answer, imported = done.stdout.splitlines()
    assert json.loads(answer)["predictions"][0]["words"] == TEXT.split()
    assert imported == "[]"
    predicted = json.loads((tmp_path / "answers.jsonl").read_text())
    assert predicted["tags"] == json.loads(answer)["predictions"][0]["tags"]
    assert predicted["starts"] == [0, 4, 8, 12, 15, 19]


@pytest.mark.slow
def test_it_has_the_answers_and_the_signature_of_a_saved_model(tmp_path: pathlib.Path):
    model_dir = save_finetuned(tmp_path / "model", MULTIPLE_CHOICE)
    folders = [export(model_dir, tmp_path / format_name, format_name) for format_name in (ONNX, SAVED_MODEL)]
    onnx, tensorflow = (loading.load(folder, None) for folder in folders)
    assert (onnx.parallel_batches, tensorflow.parallel_batches) == (1, 2)  # each uses all cores
    name = DEFAULT_SIGNATURE
    prompts, endings = np.array(["the cat", "a dog"], object), np.array([["sat", "ran", "a", ""]] * 2, object)
    assert endings.shape[1] == CHOICES
    for model in (onnx, tensorflow):
        model.warm_up()
    ours, theirs = (compute_answers(model, {"prompt": prompts, "endings": endings}) for model in (onnx, tensorflow))
    assert list(ours) == list(theirs)
    for output, values in theirs.items():
        assert ours[output].dtype == values.dtype
        np.testing.assert_allclose(ours[output].astype(float), values.astype(float), atol=1e-5)
    assert onnx.signatures[name].inputs == tensorflow.signatures[name].inputs
    assert {output: tensor.dtype for output, tensor in onnx.signatures[name].outputs.items()} == {
        output: tensor.dtype for output, tensor in tensorflow.signatures[name].outputs.items()
    }
    described, expected = onnx.signatures[name].describe(), tensorflow.signatures[name].describe()
    assert described.keys() == expected.keys()
    for part in ("inputs", "outputs"):
        assert {each: tensor["dtype"] for each, tensor in described[part].items()} == {
            each: tensor["dtype"] for each, tensor in expected[part].items()
        }


def test_a_new_version_that_is_damaged_leaves_the_last_one(tagger: pathlib.Path, tmp_path: pathlib.Path):
    folder = tmp_path / "m"
    shutil.copytree(tagger / "1", folder / "1")

    async def collect_errors(*breaks: str) -> list[str]:
        models = Models(Options([f"m={folder}"]), Metrics())
        model = models["m"]
        await model.refresh()
        errors = []
        for number, file in enumerate(breaks, start=2):
            beside = shutil.copytree(tagger / "1", tmp_path / "beside")
            path = beside / file
            if file == exports.REPLAY_FILE:
                content = json.loads(path.read_text())
                content["answers"]["words"][2][0] = "another"
                path.write_text(json.dumps(content))
                (beside / "checksums.json").unlink()
            else:
                path.write_bytes(path.read_bytes()[:50])
            beside.rename(folder / str(number))
            await model.refresh()
            await model.refresh()  # an export without checksums is loaded after two unchanged refreshes
            errors.append(model.versions[number].error)
            assert [version.number for version in model.available] == [1]
        models.pools.shut_down()
        return errors

    replay, graph, vocabulary = asyncio.run(collect_errors(exports.REPLAY_FILE, exports.ONNX_FILE, exports.VOCAB_FILE))
    assert "replay.json does not match the model: for " in replay
    assert "model.onnx does not match its checksum; restore the folder" in graph
    assert "vocab.txt does not match its checksum" in vocabulary
    assert all("\n" not in error for error in (replay, graph, vocabulary))


def test_a_runtime_that_answers_batches_wrongly_is_refused(tagger: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    model = loading.load(str(tagger / "1"), None)
    model.warm_up()
    run = OnnxPredictor.run

    def rotate_batches(self: OnnxPredictor, columns: exports.Columns, batch_size: int | None = None) -> exports.Columns:
        return {name: np.roll(values, 1, axis=0) for name, values in run(self, columns, batch_size).items()}

    monkeypatch.setattr(OnnxPredictor, "run", rotate_batches)
    with pytest.raises(UserError, match=r"does not match the model: .* with the model in a batch"):
        model.warm_up()


@pytest.mark.parametrize(("before", "after"), [(None, "1"), ("0", "0")])
def test_telemetry_of_onnxruntime_is_disabled_unless_the_user_chose(
    before: str | None, after: str, tagger: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY")
    if before is not None:
        monkeypatch.setenv("ORT_DISABLE_TELEMETRY", before)
    # The variable has an effect only if it is set before the import.
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match="onnxruntime is not installed"):
        loading.load(str(tagger / "1"), None)
    assert os.environ["ORT_DISABLE_TELEMETRY"] == after


def test_a_saved_model_without_tensorflow_names_both_remedies(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / exports.GRAPH_FILE).touch()
    monkeypatch.delitem(sys.modules, "official_bert.inference.saved_model", raising=False)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(UserError, match=r"SavedModel: .*\[serve\]'; or export the model with --format=onnx"):
        loading.load(str(tmp_path))


def test_without_onnxruntime_the_extra_is_named(tagger: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"onnxruntime is not installed; .* '.*\[serve-onnx\]'"):
        loading.load(str(tagger / "1"), None)


def test_short_texts_of_several_requests_are_answered_by_one_call(
    tagger: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    model = OnnxPredictor(str(tagger / "1"))
    requests = [exports.to_columns({"text": texts}) for texts in (["a cat"], ["the cat sat", ""])]
    expected = [model.run(columns) for columns in requests]
    run, calls = OnnxPredictor.run, list[list[str]]()

    def note(self: OnnxPredictor, columns: exports.Columns, batch_size: int | None = None) -> exports.Columns:
        calls.append(columns["text"].tolist())
        return run(self, columns, batch_size)

    monkeypatch.setattr(OnnxPredictor, "run", note)
    prepared = [model.prepare(DEFAULT_SIGNATURE, columns) for columns in requests]
    assert [[each.tokens for each in texts] for texts in prepared] == [[[5]], [[11], [0]]]  # Bytes.
    outputs = iter(model.compute([(each, 0) for texts in prepared for each in texts]))
    assert calls == [["a cat", "the cat sat", ""]]
    for texts, answers in zip(prepared, expected, strict=True):
        found = exports.join_rows([model.finish(each, [next(outputs)]) for each in texts])
        assert found.keys() == answers.keys()
        for name, values in answers.items():
            if values.dtype == object:
                assert found[name].tolist() == values.tolist()
            else:
                np.testing.assert_allclose(found[name], values, atol=1e-5)


LONG = "the cat sat on a mat , and the dog ran . " * 20  # dozens of windows


def test_windows_of_long_texts_are_computed_in_several_batches(tagger: pathlib.Path):
    texts = [LONG, "a cat", LONG[::-1], ""]
    expected = OnnxPredictor(str(tagger / "1")).run(exports.to_columns({"text": texts}))
    with running({"m": tagger}, max_batch_tokens=50) as (_, client):
        answer = client.predict("m", {"inputs": texts})
        metrics = client.get("/metrics").body.decode()
    assert answer.status == 200
    for name, values in answer.json["outputs"].items():
        if expected[name].dtype == object:
            assert values == expected[name].tolist()
        else:
            np.testing.assert_allclose(values, expected[name], atol=1e-5)
    batches = float(metrics.split('official_bert_batch_size_count{model="m"} ')[1].split()[0])
    windows = float(metrics.split('official_bert_batch_size_sum{model="m"} ')[1].split()[0])
    assert windows > 40
    assert windows / 3 <= batches < windows  # windows have 20 tokens, and the short texts fewer


def test_a_request_of_too_many_tokens_is_refused_before_all_of_it_is_tokenized(
    tagger: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    prepared: list[int] = []
    prepare = OnnxPredictor.prepare

    def note(self: OnnxPredictor, signature: str, columns: exports.Columns) -> Any:
        prepared.append(len(columns["text"]))
        return prepare(self, signature, columns)

    monkeypatch.setattr(OnnxPredictor, "prepare", note)
    with running({"m": tagger}, max_tokens=2000) as (_, client):
        prepared.clear()
        refused = client.predict("m", {"instances": [LONG * 8] * 40})
        assert (refused.status, sum(prepared)) == (413, 1)
        assert "the first 1 of 40 instances have" in refused.error
        assert "at most 2000 (--max_tokens) are accepted per request" in refused.error
        assert client.predict("m", {"instances": [LONG]}).status == 200


def test_nobody_waits_for_a_long_text_and_it_is_given_up_with_its_client(
    tagger: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    compute, opened, computed = OnnxPredictor.compute, threading.Semaphore(0), list[int]()

    def wait(self: OnnxPredictor, rows: Sequence[Row]) -> list[Any]:
        computed.append(len(rows))
        assert opened.acquire(timeout=60)
        return compute(self, rows)

    with (
        running({"m": tagger}, max_batch_tokens=20, timeout_seconds=3600.0) as (_, client),
        concurrent.futures.ThreadPoolExecutor(1) as threads,
    ):
        monkeypatch.setattr(OnnxPredictor, "compute", wait)
        body = json.dumps({"instances": [LONG * 4]}).encode()
        with sent(client, make_head("m", len(body)) + body):
            assert eventually(lambda: len(computed) == 1)
            other = threads.submit(client.predict, "m", {"instances": ["a cat"]})
            assert eventually(lambda: 'waiting{model="m"} 2.0' in client.get("/metrics").body.decode())
            for _ in range(2):  # the window that is being computed, and the other text
                opened.release()
            assert other.result().status == 200
            assert eventually(lambda: len(computed) == 3)
        assert eventually(lambda: 'waiting{model="m"} 1.0' in client.get("/metrics").body.decode())
        opened.release()  # the window that was being computed when the client disconnected
        assert eventually(lambda: 'waiting{model="m"} 0.0' in client.get("/metrics").body.decode())
        for _ in range(200):
            opened.release()
        assert client.predict("m", {"instances": ["a cat"]}).status == 200
    assert computed == [1, 1, 1, 1]
