"""The loop: its arithmetic, its distribution, what it leaves behind and how it goes on."""

import dataclasses
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from official_bert.checkpoints import initial_weights
from official_bert.checkpoints.loading import load_pretraining_model
from official_bert.data import manifest, record_codec, record_schema
from official_bert.data.input_pipeline import training_batches
from official_bert.errors import UserError
from official_bert.learning.initial_model import read_initial_model
from official_bert.modeling.compiled_blocks import FactoredLogits
from official_bert.modeling.config import BertConfig
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.optimization import distribution
from official_bert.optimization.schedules import WarmupPolynomialDecay
from official_bert.pretraining import cost, training
from official_bert.pretraining.losses import factored_masked_lm_losses, masked_lm_losses, pretraining_sums
from official_bert.pretraining.metrics import pretraining_metrics
from official_bert.pretraining.train_step import Pretrainer
from official_bert.utils.locks import lock_folder
from official_bert.utils.training_log import line_of, read_log
from tests.conftest import ROOT, WORDS
from tests.processes import run_marked_tests, worker_environments
from tests.reference import Reference, softmax

LENGTH, PREDICTIONS = 12, 3
SCHEMA = record_schema.pretraining_schema(LENGTH, PREDICTIONS, len(WORDS), 2)

GOLDEN_TRACE = ROOT / "tests" / "golden" / "loss_trace.json"


def random_record(rng: random.Random) -> dict[str, list[float]]:
    length = rng.randint(6, LENGTH)
    count = rng.randint(1, PREDICTIONS)
    first = rng.randint(2, length - 2)
    # Sentences with a pattern in them, so that there is something to learn: each word is followed by the next one.
    start = rng.randint(5, len(WORDS) - LENGTH - 1)
    ids = [2, *range(start, start + length - 1)]
    positions = sorted(rng.sample(range(1, length), count))
    labels = [ids[position] for position in positions]
    for position in positions:
        ids[position] = 4
    return {
        "input_ids": ids + [0] * (LENGTH - length),
        "input_mask": [1] * length + [0] * (LENGTH - length),
        "segment_ids": [0] * first + [1] * (length - first) + [0] * (LENGTH - length),
        "masked_lm_positions": positions + [0] * (PREDICTIONS - count),
        "masked_lm_ids": labels + [0] * (PREDICTIONS - count),
        "masked_lm_weights": [1.0] * count + [0.0] * (PREDICTIONS - count),
        "next_sentence_labels": [rng.randint(0, 1)],
    }


def encoded(record: dict[str, list[float]], schema: record_schema.Schema) -> bytes:
    return record_codec.encode({name: np.array([value]) for name, value in record.items()}, schema)[0]


@pytest.fixture
def record_files(tmp_path: pathlib.Path) -> list[str]:
    rng = random.Random(0)
    paths = []
    for number in range(2):
        path = tmp_path / f"{number}.tfrecord"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for _ in range(50):
                writer.write(encoded(random_record(rng), SCHEMA))
        paths.append(str(path))
    return paths


@pytest.fixture
def config_file(tiny_config: BertConfig, tmp_path: pathlib.Path) -> str:
    """One block: tracing the step takes most of a run's time here."""
    path = tmp_path / "config.json"
    path.write_text(dataclasses.replace(tiny_config, num_hidden_layers=1).to_json())
    return str(path)


@pytest.fixture(autouse=True)
def quick_rate_of_products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs do without the second in which they measure the machine, but for the one test that looks at the figure."""
    if request.function is not test_a_run_leaves_everything_behind_that_it_promises:
        monkeypatch.setattr(cost, "matmul_rate", lambda *_: 1e12)


def options_for(record_files: list[str], config: str, folder: pathlib.Path, **changes: object) -> training.Options:
    values = {
        "input_file": record_files,
        "bert_config_file": config,
        "output_dir": str(folder),
        "max_seq_length": LENGTH,
        "max_predictions_per_seq": PREDICTIONS,
        "do_train": True,
        "train_batch_size": 8,
        "eval_batch_size": 8,
        "learning_rate": 1e-2,
        "num_train_steps": 20,
        "num_warmup_steps": 4,
        "save_checkpoints_steps": 10,
        "log_steps": 1,
        "compile_parts": False,  # which takes seconds
        **changes,
    }
    return training.Options(**values)  # type: ignore[arg-type]


def pretrainer_for(
    config: BertConfig, strategy: tf.distribute.Strategy | None = None, rate: float = 1e-2, **settings: object
) -> Pretrainer:
    strategy = strategy or distribution.get_strategy("one_device")
    schedule = WarmupPolynomialDecay(rate, 20, 2)
    return Pretrainer(config=config, strategy=strategy, schedule=schedule, seed=1, **settings)  # type: ignore[arg-type]


def batches_for(pretrainer: Pretrainer, record_files: list[str], size: int = 8):
    data = training_batches(record_files, size, SCHEMA, seed=1)
    return iter(pretrainer.strategy.experimental_distribute_dataset(data))


def without_dropout(config: BertConfig) -> BertConfig:
    values = {**config.to_dict(), "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertConfig.from_dict(values)


def weights_of(pretrainer: Pretrainer) -> dict[str, np.ndarray]:
    return {variable.path: np.asarray(variable).copy() for variable in pretrainer.model.variables}


def test_one_step_changes_every_trainable_variable(tiny_config: BertConfig, record_files: list[str]):
    pretrainer = pretrainer_for(tiny_config)
    batches = batches_for(pretrainer, record_files)
    pretrainer.train(batches, 1)  # the first has a learning rate of 0
    before = weights_of(pretrainer)
    pretrainer.train(batches, 1)
    for path, value in weights_of(pretrainer).items():
        assert not np.array_equal(value, before[path]), path


def test_losses_are_those_of_the_reference(tiny_config: BertConfig, record_files: list[str]):
    pretrainer = pretrainer_for(tiny_config)
    batch = next(batches_for(pretrainer, record_files))
    features = {name: value.numpy() for name, value in batch.items()}
    names = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")
    logits, scores = Reference(weights_of(pretrainer), tiny_config).predict(*(features[name] for name in names))
    right = np.take_along_axis(softmax(logits), features["masked_lm_ids"][..., None], axis=-1)[..., 0]
    weights = features["masked_lm_weights"]
    chosen = np.take_along_axis(softmax(scores), features["next_sentence_labels"], axis=-1)
    hits = (logits.argmax(axis=-1) == features["masked_lm_ids"]) * weights
    metrics = pretraining_metrics(pretrainer.evaluate(batch))
    assert metrics["masked_lm_loss"] == pytest.approx((-np.log(right) * weights).sum() / weights.sum(), rel=1e-5)
    assert metrics["next_sentence_loss"] == pytest.approx(-np.log(chosen).mean(), rel=1e-5)
    assert metrics["masked_lm_accuracy"] == pytest.approx(hits.sum() / weights.sum())
    assert metrics["loss"] == pytest.approx(metrics["masked_lm_loss"] + metrics["next_sentence_loss"])


def test_records_of_zeros_count_for_nothing(tiny_config: BertConfig, record_files: list[str]):
    pretrainer = pretrainer_for(tiny_config)
    batch = next(batches_for(pretrainer, record_files))
    filled = {name: tf.concat([value, tf.zeros_like(value)], axis=0) for name, value in batch.items()}
    inputs = {name: filled[name] for name in pretrainer.model.input}
    sums = pretraining_sums(pretrainer.model(inputs), filled)
    for name, value in pretrainer.evaluate(batch).items():
        assert float(sums[name]) == pytest.approx(value, rel=1e-5), name


def test_twenty_steps_reproduce_the_stored_losses(tiny_config: BertConfig, record_files: list[str]):
    pretrainer = pretrainer_for(tiny_config)
    batches = batches_for(pretrainer, record_files)
    trace = [pretraining_metrics(pretrainer.train(batches, 1))["loss"] for _ in range(20)]
    assert trace == pytest.approx(json.loads(GOLDEN_TRACE.read_text()), rel=1e-3)
    assert trace[-1] < trace[0]


@pytest.mark.parametrize("compiled", [False, True])
def test_masked_lm_losses_hits_and_gradients_are_those_of_their_definitions(compiled: bool):
    rng = np.random.default_rng(1)
    values = rng.normal(size=(2, 3, 7)).astype(np.float32)
    labels = np.array([[0, 6, 3], [2, 5, 1]], np.int32)
    values[0, 0, 0] = 9.0  # a hit
    values[0, 1, [2, 6]] = 8.0  # the highest logit twice: not the first, so no hit
    values[0, 2, [3, 5]] = 7.0  # the first, so a hit
    weights = rng.uniform(size=(2, 3)).astype(np.float32)
    logits = tf.constant(values)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(logits)
        losses, hits = masked_lm_losses(logits, labels, compiled)
        loss = tf.reduce_sum(weights * losses)
        expected_losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        expected = tf.reduce_sum(weights * expected_losses)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    np.testing.assert_array_equal(hits, values.argmax(axis=-1) == labels)
    assert hits.numpy()[0].tolist() == [1, 0, 1]
    np.testing.assert_allclose(tape.gradient(loss, logits), tape.gradient(expected, logits), atol=1e-6)
    assert np.isnan(masked_lm_losses(logits, labels + 2, compiled)[0].numpy()).tolist() == (labels > 4).tolist()


def test_factored_logits_have_the_losses_hits_and_gradients_of_the_logits():
    rng = np.random.default_rng(1)
    vectors, table = rng.normal(size=(2, 3, 4)).astype(np.float32), rng.normal(size=(7, 4)).astype(np.float32)
    bias = rng.normal(size=7).astype(np.float32)
    table[6], bias[6] = table[2], bias[2]  # of equal logits
    labels = (vectors @ table.T + bias).argmax(axis=-1).astype(np.int32)
    labels[0, :2] = 6, 3
    weights = rng.uniform(size=(2, 3)).astype(np.float32)
    factors = [tf.constant(each) for each in (vectors, table, bias)]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(factors)
        losses, hits = factored_masked_lm_losses(FactoredLogits(*factors), labels)
        loss = tf.reduce_sum(weights * losses)
        logits = tf.matmul(factors[0], factors[1], transpose_b=True) + factors[2]
        expected_losses, expected_hits = masked_lm_losses(logits, labels)
        expected = tf.reduce_sum(weights * expected_losses)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(hits, expected_hits)
    assert set(hits.numpy().ravel()) == {0, 1}
    for found, wanted in zip(tape.gradient(loss, factors), tape.gradient(expected, factors), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    outside = factored_masked_lm_losses(FactoredLogits(*factors), labels + 7)[0]
    assert np.isnan(outside.numpy()).all()


@pytest.mark.slow
def test_many_steps_in_one_call_and_compiled_steps_equal_single_steps(tiny_config: BertConfig, record_files: list[str]):
    results = []
    compilations = {"jit_compile": True}, {"compile_parts": True}
    for calls, compilation in (([1] * 6, {}), ([2, 4], {}), *(([6], each) for each in compilations)):
        pretrainer = pretrainer_for(tiny_config, **compilation)
        batches = batches_for(pretrainer, record_files)
        sums = [pretrainer.train(batches, steps) for steps in calls]
        results.append((sum(each["masked_lm_loss"] for each in sums), weights_of(pretrainer)))
        assert pretrainer.step == 6
    for loss, weights in results[1:]:
        assert loss == pytest.approx(results[0][0], rel=1e-5)
        for path, value in weights.items():
            np.testing.assert_allclose(value, results[0][1][path], atol=1e-5)


@pytest.mark.slow
def test_two_devices_equal_one():
    """Runs the tests marked two_devices in a process of their own, whose processor is split in two."""
    assert "2 passed" in run_marked_tests(2, __file__)


@pytest.mark.slow
def test_two_workers_equal_one(
    tiny_config: BertConfig, record_files: list[str], tmp_path: pathlib.Path, vocab_file: str
):
    """A real launch of two processes, by the command, stopped by a signal to one, by its loss, and taken up again."""
    (tmp_path / "config.json").write_text(without_dropout(tiny_config).to_json())
    command = [
        sys.executable, "-m", "official_bert_cli", "pretrain", f"--input_file={','.join(record_files)}", "--do_train",
        f"--bert_config_file={tmp_path}/config.json", f"--max_seq_length={LENGTH}", f"--vocab_file={vocab_file}",
        f"--max_predictions_per_seq={PREDICTIONS}", "--train_batch_size=8", "--log_steps=2", "--learning_rate=1e-3",
        "--num_warmup_steps=2",
    ]  # fmt: skip
    environments = worker_environments(2)

    def launch(steps: int, by_flags: bool = True) -> list[subprocess.Popen[str]]:
        processes = []
        for index, environment in enumerate(environments):
            whole = [*command, f"--output_dir={tmp_path}/two", f"--num_train_steps={steps}"]
            whole += ["--distribution_strategy=multi_worker", "--gradient_accumulation_steps=2"]
            whole.append("--allow_changes=num_train_steps")
            if by_flags:
                hosts = json.loads(environment["TF_CONFIG"])["cluster"]["worker"]
                environment = {name: value for name, value in environment.items() if name != "TF_CONFIG"}
                whole += [f"--worker_hosts={','.join(hosts)}", f"--worker_index={index}"]
            pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            processes.append(subprocess.Popen(whole, cwd=ROOT, env=environment, text=True, **pipes))
        return processes

    # The learning rate depends on the number of steps, so that this first run is of as many as the whole.
    processes = launch(10, by_flags=False)
    outputs = [process.communicate(timeout=180)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    flags = [f"--output_dir={tmp_path}/one", "--num_train_steps=10"]
    subprocess.run([*command, *flags], cwd=ROOT, capture_output=True, check=True)
    one, two = (tf.train.load_checkpoint(f"{tmp_path}/{name}") for name in ("one", "two"))
    names = [name for name in one.get_variable_to_shape_map() if name.startswith("model/")]
    assert names
    for name in names:
        np.testing.assert_allclose(two.get_tensor(name), one.get_tensor(name), atol=2e-5, err_msg=name)

    logs = [read_log(f"{tmp_path}/{name}", "train") for name in ("one", "two")]
    assert len(logs[0]) == 5
    for expected, found in zip(*logs, strict=True):
        for name in ("masked_lm_loss", "next_sentence_loss", "gradient_norm"):
            assert found[name] == pytest.approx(expected[name], rel=1e-4), name

    def launch_and_wait() -> list[subprocess.Popen[str]]:
        """Launches a long run, and waits for some steps."""
        lines = len(read_log(f"{tmp_path}/two", "train"))
        processes = launch(1_000_000)
        deadline = time.monotonic() + 120
        while len(read_log(f"{tmp_path}/two", "train")) < lines + 3 and time.monotonic() < deadline:
            time.sleep(0.2)
        return processes

    # A signal to the worker that does not save stops both, after a save.
    processes = launch_and_wait()
    processes[1].send_signal(signal.SIGTERM)
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [128 + signal.SIGTERM] * 2, outputs
    steps = {re.search(r"stopped at step ([\d,]+)", output).group(1).replace(",", "") for output in outputs}  # type: ignore[union-attr]
    assert len(steps) == 1
    step = int(steps.pop())
    assert tf.train.latest_checkpoint(f"{tmp_path}/two").endswith(f"ckpt-{step}")

    # Where one is lost, the other ends and says so.
    processes = launch_and_wait()
    processes[1].kill()
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert processes[0].returncode == 1
    assert "error: another worker was lost, or cannot be reached" in outputs[0]
    step = int(tf.train.latest_checkpoint(f"{tmp_path}/two").rpartition("-")[2])

    # Both go on from that save, with the step and the records that follow it.
    processes = launch(step + 4)
    outputs = [process.communicate(timeout=180)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert all(f"going on from {tmp_path}/two/ckpt-{step}, step {step:,}" in output for output in outputs)
    steps_logged = [line["step"] for line in read_log(f"{tmp_path}/two", "train")]
    assert steps_logged[-1] == step + 4
    assert len(set(steps_logged)) == len(steps_logged)
    position = "place/position/.ATTRIBUTES/VARIABLE_VALUE"
    assert tf.train.load_variable(f"{tmp_path}/two/ckpt-{step + 4}", position) == 8 * (step + 4)


@pytest.mark.two_devices
def test_two_devices_take_the_same_steps_as_one(tiny_config: BertConfig, record_files: list[str]):
    results = []
    for name in ("one_device", "mirrored"):
        strategy = distribution.get_strategy(name)
        assert strategy.num_replicas_in_sync == (2 if name == "mirrored" else 1)
        pretrainer = pretrainer_for(without_dropout(tiny_config), strategy)
        batches = batches_for(pretrainer, record_files)
        sums = [pretrainer.train(batches, 1) for _ in range(10)]
        results.append((sums, weights_of(pretrainer)))
    (one, weights_of_one), (two, weights_of_two) = results
    for expected, found in zip(one, two, strict=True):
        for name, value in expected.items():  # the norm of the gradient before clipping is among them
            if name == "input_wait":
                continue
            assert found[name] == pytest.approx(value, rel=1e-4, abs=1e-4), name
    for path, value in weights_of_one.items():
        np.testing.assert_allclose(weights_of_two[path], value, atol=2e-5, err_msg=path)


@pytest.mark.two_devices
def test_dropout_differs_between_devices_and_steps(tiny_config: BertConfig):
    pretrainer = pretrainer_for(tiny_config, distribution.get_strategy("mirrored"))

    @tf.function
    def seeds():
        return pretrainer.strategy.run(
            lambda: pretrainer._dropout_seed(tf.distribute.get_replica_context().replica_id_in_sync_group, 0)
        )

    found = []
    for _ in range(3):
        found += [tuple(seed.numpy()) for seed in pretrainer.strategy.experimental_local_results(seeds())]
        pretrainer.optimizer.iterations.assign_add(1)
    assert len(set(found)) == 6


def test_dropout_depends_on_the_step_alone(tiny_config: BertConfig, record_files: list[str]):
    batch = next(batches_for(pretrainer_for(tiny_config), record_files))
    losses = []
    for _ in range(2):
        pretrainer = pretrainer_for(tiny_config, rate=1e-30)
        data = tf.data.Dataset.from_tensors(batch).repeat()
        batches = iter(pretrainer.strategy.experimental_distribute_dataset(data))
        losses.append([pretrainer.train(batches, 1)["masked_lm_loss"] for _ in range(3)])
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == 3


def test_a_run_leaves_everything_behind_that_it_promises(
    record_files: list[str], config_file: str, vocab_file: str, tmp_path: pathlib.Path
):
    folder = tmp_path / "run"
    options = options_for(record_files, config_file, folder, do_eval=True, vocab_file=vocab_file, keep_checkpoint_max=1)
    assert training.run(options) == 0
    assert {path.name for path in folder.iterdir()} == {
        "bert_config.json", "vocab.txt", "tokenizer_config.json", "checkpoint", "ckpt-20.index",
        "ckpt-20.data-00000-of-00001", "train.jsonl", "eval.jsonl", "train", "eval", "eval_results.txt", "curves.png",
        "run.json", "report.html", "MODEL_CARD.md", "checksums.json",
    }  # fmt: skip
    lines = read_log(str(folder), "train")
    assert [line["step"] for line in lines] == list(range(1, 21))
    assert set(lines[0]) == {
        "step", "loss", "masked_lm_loss", "masked_lm_accuracy", "next_sentence_loss", "next_sentence_accuracy",
        "learning_rate", "gradient_norm", "steps_per_second", "examples_per_second", "tokens_per_second",
        "input_wait_share", "model_flops_per_second", "flops_utilization", "max_seq_length",
    }  # fmt: skip
    assert lines[0]["learning_rate"] == 0.0
    assert lines[4]["learning_rate"] == pytest.approx(1e-2 * (1 - 4 / 20))
    results = dict(line.split(" = ") for line in (folder / "eval_results.txt").read_text().splitlines())
    assert list(results) == [
        "global_step", "loss", "masked_lm_accuracy", "masked_lm_loss", "next_sentence_accuracy", "next_sentence_loss",
    ]  # fmt: skip
    assert results["global_step"] == "20"
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    events = list((folder / "train").glob("events.out.tfevents.*"))
    tags = {
        value.tag
        for path in events
        for e in tf.compat.v1.train.summary_iterator(str(path))
        for value in e.summary.value
    }
    assert "masked_lm_loss" in tags


def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(
    record_files: list[str], config_file: str, tmp_path: pathlib.Path
):
    straight, halved = tmp_path / "straight", tmp_path / "halved"
    training.run(options_for(record_files, config_file, straight))
    # The same options but for the stop: what is left out after step 10 is what a kill would lose.
    training.run(options_for(record_files, config_file, halved))
    for path in halved.glob("ckpt-20*"):
        path.unlink()
    training.run(options_for(record_files, config_file, halved))
    weights = [tf.train.load_checkpoint(str(folder)) for folder in (straight, halved)]
    names = [name for name in weights[0].get_variable_to_shape_map() if "ATTRIBUTES" in name and "counter" not in name]
    assert len(names) > 90
    for name in names:
        np.testing.assert_array_equal(weights[1].get_tensor(name), weights[0].get_tensor(name), err_msg=name)
    losses = [[line["loss"] for line in read_log(str(folder), "train")] for folder in (straight, halved)]
    assert len(losses[1]) == 20
    assert losses[1] == losses[0]


def test_sigterm_saves_and_the_same_command_goes_on(record_files: list[str], config_file: str, tmp_path: pathlib.Path):
    command = [
        sys.executable, "-m", "official_bert_cli", "pretrain", f"--input_file={','.join(record_files)}", "--do_train",
        f"--bert_config_file={config_file}", f"--output_dir={tmp_path}/run", f"--max_seq_length={LENGTH}",
        f"--max_predictions_per_seq={PREDICTIONS}", "--train_batch_size=8", "--num_train_steps=100000", "--log_steps=5",
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    log = tmp_path / "run" / "train.jsonl"
    deadline = time.monotonic() + 120
    while (not log.exists() or not log.stat().st_size) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, output
    saved = tf.train.latest_checkpoint(f"{tmp_path}/run")
    assert saved is not None, output
    step = int(saved.rsplit("-", 1)[1])
    assert f"stopped at step {step:,}; the same command goes on from there" in output
    command = [part.replace("100000", str(step + 5)) for part in command] + ["--allow_changes=num_train_steps"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"going on from {saved}, step {step:,}" in done.stdout
    assert [line["step"] for line in read_log(f"{tmp_path}/run", "train")][-1] == step + 5


def test_init_checkpoint_gives_weights_and_starts_at_step_zero(
    record_files: list[str], config_file: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    first = tmp_path / "first"
    training.run(options_for(record_files, config_file, first))
    changes = {"init_checkpoint": str(first), "num_train_steps": 1, "learning_rate": 1e-9}
    second = options_for(record_files, config_file, tmp_path / "second", **changes)
    training.run(second)
    output = capsys.readouterr().out
    assert "  taken    layer_0_attention_query/kernel\n" in output
    assert re.search(r"30 tensors taken, 0 missing, 0 unused, beside \d+ of the optimizer's", output)
    names = [name for name, _ in tf.train.list_variables(str(first)) if name.startswith("model/")]
    for name in names:
        expected = tf.train.load_variable(str(first), name)
        np.testing.assert_allclose(tf.train.load_variable(second.output_dir, name), expected, atol=1e-7)
    assert read_log(second.output_dir, "train")[0]["step"] == 1


def test_google_checkpoint_is_read_by_its_names(test_data: pathlib.Path):
    folder = test_data / "checkpoints" / "toy_tf1"
    config = BertConfig.from_json_file(str(folder / "bert_config.json"))
    model = build_pretraining_model(config)
    loaded = initial_weights.load_weights(model, str(folder / "bert_model.ckpt"))
    assert (len(loaded.taken), loaded.missing, loaded.unused, loaded.state) == (46, {}, [], 93)
    assert "  taken    pooler/bias from bert/pooler/dense/bias" in loaded.lines()
    reader = tf.train.load_checkpoint(str(folder / "bert_model.ckpt"))
    weights = {variable.path: np.asarray(variable) for variable in model.variables}
    np.testing.assert_array_equal(
        weights["layer_1_attention_output/kernel"],
        reader.get_tensor("bert/encoder/layer_1/attention/output/dense/kernel"),
    )
    np.testing.assert_array_equal(
        weights["next_sentence/kernel"], reader.get_tensor("cls/seq_relationship/output_weights").T
    )
    batch = {name: np.array([[2, 5, 4, 3, 0]]) for name in ("input_ids", "masked_lm_positions")}
    batch |= {"input_mask": np.array([[1, 1, 1, 1, 0]]), "segment_ids": np.array([[0, 0, 1, 1, 0]])}
    batch["masked_lm_positions"] = np.array([[1, 2]])
    masked_lm, next_sentence = Reference(weights, config).predict(**batch)
    outputs = model(batch)
    np.testing.assert_allclose(outputs["masked_lm_logits"], masked_lm, atol=1e-5)
    np.testing.assert_allclose(outputs["next_sentence_logits"], next_sentence, atol=1e-5)


def test_weights_of_another_size_are_refused_by_name(
    record_files: list[str], config_file: str, tiny_config: BertConfig, tmp_path: pathlib.Path
):
    training.run(options_for(record_files, config_file, tmp_path / "first", num_train_steps=1))
    other = BertConfig.from_dict({**tiny_config.to_dict(), "intermediate_size": 32, "num_hidden_layers": 3})
    (tmp_path / "other.json").write_text(other.to_json())
    options = options_for(
        record_files, str(tmp_path / "other.json"), tmp_path / "second", init_checkpoint=str(tmp_path / "first")
    )
    with pytest.raises(UserError, match=r"layer_0_intermediate.* has shape \[8, 16\]; expected \[8, 32\]") as caught:
        training.run(options)
    assert "layer_2_attention_query" in str(caught.value)
    assert "is missing" in str(caught.value)


def test_weights_may_be_missing_or_left_over_where_that_is_allowed_by_name(
    record_files: list[str], tiny_config: BertConfig, tmp_path: pathlib.Path
):
    config_file = str(tmp_path / "two.json")
    pathlib.Path(config_file).write_text(tiny_config.to_json())
    training.run(options_for(record_files, config_file, tmp_path / "first", num_train_steps=1))
    other = BertConfig.from_dict({**tiny_config.to_dict(), "num_hidden_layers": 1, "intermediate_size": 32})
    model = build_pretraining_model(other)
    before = {variable.path: np.asarray(variable) for variable in model.variables}
    first = str(tmp_path / "first")
    with pytest.raises(UserError, match=r"layer_1_.* is left over; .*--init_allow=layer_0_intermediate/kernel"):
        initial_weights.load_weights(model, first, ["layer_0_output/kernel"])
    for variable in model.variables:
        np.testing.assert_array_equal(variable, before[variable.path])
    loaded = initial_weights.load_weights(model, first, ["layer_0_(intermediate/.*|output/kernel)", "model/layer_1_.*"])
    assert set(loaded.missing) == {"layer_0_intermediate/kernel", "layer_0_intermediate/bias", "layer_0_output/kernel"}
    assert len(loaded.unused) == 16
    changed = {path for path in before if np.any(before[path] != _value(model, path))}
    assert "layer_0_attention_query/kernel" in changed
    assert not changed & set(loaded.missing)


def _value(model: Any, path: str) -> np.ndarray:
    return np.asarray(next(variable for variable in model.variables if variable.path == path))


def test_a_folder_that_another_process_uses_is_refused(
    record_files: list[str], config_file: str, tmp_path: pathlib.Path
):
    with (
        lock_folder(str(tmp_path / "run"), "output_dir"),
        pytest.raises(UserError, match=f"--output_dir: .*run is in use .process {os.getpid()} on"),
    ):
        training.run(options_for(record_files, config_file, tmp_path / "run"))


def write_manifest(record_files: list[str], vocab_file: str, **flags: object) -> None:
    """Writes beside the records what says how they were made."""
    shards = [
        manifest.Shard(pathlib.Path(path).name, 50, pathlib.Path(path).stat().st_size, manifest.sha256(path))
        for path in record_files
    ]
    source = {"format": manifest.FORMAT, "flags": flags, "vocabulary": manifest.sha256(vocab_file), "inputs": []}
    path = pathlib.Path(record_files[0]).parent / "records.manifest.json"
    path.write_text(manifest.Manifest(source, shards, {}).to_json())


@pytest.mark.slow
def test_the_records_manifest_decides_whether_the_model_is_cased(
    record_files: list[str], config_file: str, vocab_file: str, tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    write_manifest(record_files, vocab_file, do_lower_case=False)
    folder = tmp_path / "run"
    with pytest.raises(UserError, match="--do_lower_case contradicts the manifest of the records of --input_file"):
        training.run(options_for(record_files, config_file, folder, vocab_file=vocab_file, do_lower_case=True))
    training.run(options_for(record_files, config_file, folder, vocab_file=vocab_file, num_train_steps=1))
    assert load_pretraining_model(str(folder))[2].basic_tokenizer.do_lower_case is False
    assert read_initial_model(str(folder)).do_lower_case is False
    assert json.loads((folder / "run.json").read_text())["flags"]["do_lower_case"] is False
    # A folder of the code before, which believed the flag's default.
    (folder / "tokenizer_config.json").write_text('{\n  "do_lower_case": true\n}\n')
    longer = {"num_train_steps": 2, "allow_changes": ["num_train_steps"]}
    training.run(options_for(record_files, config_file, folder, vocab_file=vocab_file, **longer))
    assert "tokenizer_config.json is corrected" in capsys.readouterr().out
    assert json.loads((folder / "tokenizer_config.json").read_text()) == {"do_lower_case": False}


def test_a_vocabulary_smaller_than_the_model_is_a_warning_or_decides_the_size(
    record_files: list[str], tiny_config: BertConfig, vocab_file: str, tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    large = dataclasses.replace(tiny_config, num_hidden_layers=1, vocab_size=100)
    (tmp_path / "large.json").write_text(large.to_json())
    options = options_for(
        record_files, str(tmp_path / "large.json"), tmp_path / "run", vocab_file=vocab_file, num_train_steps=1
    )
    training.run(options)
    assert "warning: the vocabulary has 78 tokens, the word table 100 rows" in capsys.readouterr().out
    assert BertConfig.from_json_file(str(tmp_path / "run" / "bert_config.json")).vocab_size == 100
    as_vocab = {"output_dir": str(tmp_path / "small"), "vocab_size_from_vocab": True}
    training.run(dataclasses.replace(options, **as_vocab))
    assert "warning" not in capsys.readouterr().out
    assert BertConfig.from_json_file(str(tmp_path / "small" / "bert_config.json")).vocab_size == 78
    with pytest.raises(UserError, match="--vocab_size_from_vocab needs the vocabulary"):
        dataclasses.replace(options, vocab_file=None, vocab_size_from_vocab=True)


def test_all_mistakes_are_named_at_once_the_most_specific_first(
    record_files: list[str], config_file: str, tiny_config: BertConfig, tmp_path: pathlib.Path
):
    training.run(options_for(record_files, config_file, tmp_path / "run", num_train_steps=1))
    other = dataclasses.replace(tiny_config, hidden_dropout_prob=0.2, num_hidden_layers=1)
    (tmp_path / "other.json").write_text(other.to_json())
    options = options_for(
        ["none-*"], str(tmp_path / "other.json"), tmp_path / "run", max_seq_length=64, num_train_steps=2
    )
    with pytest.raises(UserError) as caught:
        training.run(options)
    first, *mistakes = str(caught.value).splitlines()
    assert first == "4 things are wrong:"
    for mistake, expected in zip(mistakes, (
        "1. --input_file: no file matches 'none-*'", "2. --max_seq_length is 64, but", "holds a run that was begun",
        "bert_config.json differs from this command's",
    ), strict=True):  # fmt: skip
        assert expected in mistake


def test_vocabulary_larger_than_the_model_is_refused(
    record_files: list[str], config_file: str, vocab_file: str, tmp_path: pathlib.Path
):
    with open(vocab_file, "a") as vocabulary:
        vocabulary.write("more\n")
    with pytest.raises(UserError, match="has 79 tokens, but .* has vocab_size 78"):
        training.run(options_for(record_files, config_file, tmp_path / "run", vocab_file=vocab_file))


def test_folder_of_another_configuration_is_refused(
    record_files: list[str], config_file: str, tiny_config: BertConfig, tmp_path: pathlib.Path
):
    training.run(options_for(record_files, config_file, tmp_path / "run", num_train_steps=1))
    other = BertConfig.from_dict({**tiny_config.to_dict(), "hidden_dropout_prob": 0.2})
    (tmp_path / "other.json").write_text(other.to_json())
    with pytest.raises(UserError, match="the folder holds another run"):
        training.run(options_for(record_files, str(tmp_path / "other.json"), tmp_path / "run"))


@pytest.mark.parametrize(("changes", "message"), [
    ({"do_train": False}, "nothing to do; pass --do_train"),
    ({"train_batch_size": 0}, "--train_batch_size is 0; expected at least 1"),
    ({"num_warmup_steps": -1}, "--num_warmup_steps is -1; expected at least 0"),
    ({"learning_rate": 0.0}, "--learning_rate is 0.0"),
    ({"input_file": ["none-*"]}, "--input_file: no file matches 'none-\\*'"),
    ({"bert_config_file": "none.json"}, "there is no file none.json"),
    ({"max_seq_length": 64}, "--max_seq_length is 64, but .* has max_position_embeddings 32"),
    ({"max_seq_length": 16}, "input_ids has 12 values; expected 16; --max_seq_length"),
    ({"init_checkpoint": "none/ckpt"}, "there is no readable checkpoint none/ckpt"),
    ({"vocab_file": str(ROOT / "LICENSE")}, r"LICENSE has .* tokens but not \[PAD\]"),
    ({"use_tpu": True, "distribution_strategy": "mirrored"}, "--use_tpu and --distribution_strategy=mirrored exclude"),
    ({"jit_compile": True, "use_tpu": True}, "no TPU 'local' could be reached"),
])  # fmt: skip
def test_bad_options_are_refused_before_the_first_step(
    changes: dict[str, object], message: str, record_files: list[str], config_file: str, tmp_path: pathlib.Path
):
    with pytest.raises(UserError, match=message):
        training.run(options_for(record_files, config_file, tmp_path / "run", **changes))
    assert not list(tmp_path.glob("run/ckpt*"))


def test_damaged_record_stops_the_run_and_is_named(record_files: list[str], config_file: str, tmp_path: pathlib.Path):
    path = pathlib.Path(record_files[1])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"1.tfrecord: record \d+ \(from 0\), near byte \d+, is damaged"):
        training.run(options_for(record_files, config_file, tmp_path / "run"))


def test_id_outside_the_vocabulary_is_named(record_files: list[str], config_file: str, tmp_path: pathlib.Path):
    schema = record_schema.pretraining_schema(LENGTH, PREDICTIONS)
    rng = random.Random(1)
    with tf.io.TFRecordWriter(str(tmp_path / "2.tfrecord")) as writer:
        for number in range(20):
            record = random_record(rng)
            if number == 7:
                record["input_ids"][1] = len(WORDS)
            writer.write(encoded(record, schema))
    paths = [*record_files, str(tmp_path / "2.tfrecord")]
    with pytest.raises(UserError, match=r"2.tfrecord: record 7 \(from 0\): input_ids holds 78; expected 0 to 77"):
        training.run(options_for(paths, config_file, tmp_path / "run"))


def test_bad_value_is_named_whatever_the_device_would_make_of_it(
    record_files: list[str], config_file: str, tmp_path: pathlib.Path
):
    rng = random.Random(1)
    schema = record_schema.pretraining_schema(LENGTH, PREDICTIONS)
    for name, value in (("segment_ids", 7), ("masked_lm_positions", LENGTH), ("masked_lm_ids", -1)):
        path = tmp_path / f"{name}.tfrecord"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for number in range(8):
                record = random_record(rng)
                if number == 5:
                    record[name][0] = value
                writer.write(encoded(record, schema))
        with pytest.raises(
            UserError, match=rf"{name}.tfrecord: record 5 \(from 0\): {name} holds {value}; expected 0 to"
        ):
            training.run(options_for([str(path)], config_file, tmp_path / name))


def test_empty_files_are_left_out(
    record_files: list[str], config_file: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    empty = tmp_path / "empty.tfrecord"
    empty.touch()
    training.run(options_for([*record_files, str(empty)], config_file, tmp_path / "run", num_train_steps=1))
    assert f"left out, since they are empty: {empty}" in capsys.readouterr().out
    with pytest.raises(UserError, match="there is no record in .*empty.tfrecord; make some with"):
        training.run(options_for([str(empty)], config_file, tmp_path / "other"))


def test_evaluation_without_a_checkpoint_is_refused(record_files: list[str], config_file: str, tmp_path: pathlib.Path):
    with pytest.raises(UserError, match="has no checkpoint to evaluate"):
        training.run(options_for(record_files, config_file, tmp_path / "run", do_train=False, do_eval=True))


@pytest.mark.slow
def test_evaluation_leaves_the_training_log_alone(record_files: list[str], config_file: str, tmp_path: pathlib.Path):
    folder = tmp_path / "run"
    training.run(options_for(record_files, config_file, folder))
    log = folder / "train.jsonl"
    before = log.read_text() + line_of({**read_log(str(folder), "train")[-1], "step": 25})
    log.write_text(before)
    for _ in range(2):
        training.run(options_for(record_files, config_file, folder, do_train=False, do_eval=True))
    assert (folder / "train.jsonl").read_text() == before
    assert len(read_log(str(folder), "eval")) == 2


def test_damaged_log_is_named_by_line(record_files: list[str], config_file: str, tmp_path: pathlib.Path):
    folder = tmp_path / "run"
    training.run(options_for(record_files, config_file, folder))
    log = folder / "train.jsonl"
    log.write_text(log.read_text().replace('"step": 3,', '"step": 3', 1))
    with pytest.raises(UserError, match="train.jsonl, line 3, is not valid JSON"):
        training.run(options_for(record_files, config_file, folder))


def test_run_without_tensorboard_goes_on(
    record_files: list[str], config_file: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("official_bert.utils.training_log.importlib.util.find_spec", lambda _: None)
    training.run(options_for(record_files, config_file, tmp_path / "run"))
    assert len(read_log(str(tmp_path / "run"), "train")) == 20
    assert not (tmp_path / "run" / "train").exists()


def test_full_disk_while_logging_is_told(
    record_files: list[str], config_file: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object, **__: object) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr("tensorflow.summary.create_file_writer", fail)
    with pytest.raises(
        UserError, match="cannot write the log in .* No space left on device; the checkpoints are intact"
    ):
        training.run(options_for(record_files, config_file, tmp_path / "run"))


def test_a_loss_that_is_not_finite_stops_the_run(record_files: list[str], config_file: str, tmp_path: pathlib.Path):
    options = options_for(record_files, config_file, tmp_path / "run", learning_rate=1e30, num_warmup_steps=0)
    with pytest.raises(UserError, match=r"not finite in step \d+: loss nan.*numbered from 0: .*\.tfrecord: \d+"):
        training.run(options)


def test_checkpoint_that_cannot_be_written_leaves_the_earlier_ones(
    record_files: list[str], config_file: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "run"
    write = tf.train.Checkpoint.write

    def fail_later(self, path: str) -> str:
        if path.endswith("ckpt-20"):
            raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")
        return write(self, path)

    monkeypatch.setattr(tf.train.Checkpoint, "write", fail_later)
    with pytest.raises(UserError, match="cannot save step 20 .* No space left on device; the earlier checkpoints"):
        training.run(options_for(record_files, config_file, folder))
    assert tf.train.latest_checkpoint(str(folder)) == os.path.join(folder, "ckpt-10")


def test_unknown_strategy_is_refused():
    with pytest.raises(UserError, match="unknown distribution strategy 'magic'"):
        distribution.get_strategy("magic")


def test_bfloat16_trains(record_files: list[str], config_file: str, tmp_path: pathlib.Path):
    training.run(options_for(record_files, config_file, tmp_path / "run", dtype="bfloat16"))
    losses = [line["loss"] for line in read_log(str(tmp_path / "run"), "train")]
    assert sum(losses[-5:]) < sum(losses[:5])
