"""The list of workers from flags, TF_CONFIG or SLURM's variables. The training tests cover what they compute."""

import json
import os
from unittest import mock

import pytest
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.optimization import distribution
from official_bert.optimization.distribution import get_strategy, set_workers
from tests.make import assert_mentions, assert_rejected, refusal


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Removes the variables that define workers, and restores the environment after the test."""
    for name in ["TF_CONFIG", *(name for name in os.environ if name.startswith("SLURM"))]:
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    return monkeypatch


def resolve_workers():
    """Returns the workers and the task of this process as TensorFlow's strategy reads them."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return resolver.cluster_spec().as_dict()["worker"], resolver.task_type, resolver.task_id


NO_KERNEL = "No OpKernel was registered to support Op 'ConfigureDistributedTPU' with these attrs: []"
TPU_ERRORS = [
    (tf.errors.InvalidArgumentError(None, None, NO_KERNEL), "tensorflow-tpu"),
    (tf.errors.NotFoundError(None, None, "BUSY\nand more"), "BUSY"),
    (OSError("ENOENT"), "ENOENT"),
    (ValueError(), "ValueError"),
]


@pytest.mark.parametrize(("error", "reason"), TPU_ERRORS)
def test_a_missing_tpu_is_reported_in_one_line(error, reason, monkeypatch):
    connect = mock.Mock(side_effect=error)
    monkeypatch.setattr(tf.distribute.cluster_resolver.TPUClusterResolver, "connect", connect)
    assert_rejected("'local'", get_strategy, "tpu")
    message = refusal(get_strategy, "tpu", "mine", "here", "ours")
    assert connect.call_args.kwargs == {"tpu": "mine", "zone": "here", "project": "ours"}
    assert_mentions(message, "'mine'", reason, "--tpu_name")
    assert "\n" not in message
    assert "attrs" not in message


def test_a_list_of_hosts_becomes_the_cluster():
    hosts = ["a:2222", "[::1]:2222"]
    for _ in range(2):  # twice in one process, as in a sweep
        set_workers("multi_worker", hosts, 1)
    assert resolve_workers() == (hosts, "worker", 1)
    assert_rejected(("--worker_hosts", "TF_CONFIG"), set_workers, "multi_worker", hosts, 0)
    assert_rejected("--worker_hosts=:1,b:1", set_workers, "multi_worker", [":1", "b:1"], 0)


def test_invalid_strategies_and_workers_are_rejected():
    for name, hosts, index, names in (
        ("mirrored", ["a:1", "b:1"], 0, ("--worker_hosts", "--distribution_strategy=multi_worker")),
        ("one_device", [], 0, ("--worker_index", "--distribution_strategy=multi_worker")),
        ("multi_worker", ["a:1", "b:1"], None, ("--worker_index", "missing", 0, 1)),
        ("multi_worker", ["a:1", "b:1"], 2, ("--worker_index", 2, 0, 1)),
        ("multi_worker", [], 0, ("--worker_index=0", "--worker_hosts")),
        ("multi_worker", ["a", "b:1"], 0, "--worker_hosts=a,b:1"),
        ("multi_worker", ["a:1", "a:1"], 0, "--worker_hosts=a:1,a:1"),
    ):
        assert_rejected(names, get_strategy, name, worker_hosts=hosts, worker_index=index)
        assert "TF_CONFIG" not in os.environ


def test_an_invalid_tf_config_is_rejected(environment):
    task = '{"cluster": {"worker": ["a:1"]}, "task": {"type": "%s", "index": %s}}'
    tasks = [task % each for each in (("worker", 1), ("worker", -1), ("worker", '"x"'), ("evaluator", 0))]
    for value in ("", "{bad", "[]", *tasks):
        environment.setenv("TF_CONFIG", value)
        assert_rejected(("TF_CONFIG", value, "--worker_hosts"), set_workers, "multi_worker", [], None)


def test_a_single_worker_is_warned_about(environment, capsys):
    for _ in range(2):
        set_workers("multi_worker", [], None)
        assert "this process trains alone" in capsys.readouterr().out
        environment.setenv("TF_CONFIG", "{}")
    environment.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}')
    set_workers("multi_worker", [], None)
    assert not capsys.readouterr().out


def set_slurm(environment, nodes, per_node, tasks, task, here):
    """Sets the variables that SLURM sets for the tasks of a step."""
    variables = {"_STEP_NODELIST": nodes, "_STEP_TASKS_PER_NODE": per_node, "_STEP_NUM_TASKS": tasks, "_PROCID": task}
    for name, value in {**variables, "D_NODENAME": here}.items():
        environment.setenv(f"SLURM{name}", str(value))


def test_workers_are_read_from_slurm_variables(environment):
    set_slurm(environment, "n1", "1", tasks=1, task=0, here="n1")
    set_workers("multi_worker", [], None)
    assert "TF_CONFIG" not in os.environ, "a step with one task is a single worker"
    set_slurm(environment, "gpu[08-09,11]", "2(x2),1", tasks=5, task=3, here="gpu09")
    set_workers("multi_worker", [], None)
    hosts = ["gpu08:8888", "gpu08:8889", "gpu09:8888", "gpu09:8889", "gpu11:8888"]
    assert resolve_workers() == (hosts, "worker", 3)
    assert "CUDA_VISIBLE_DEVICES" not in json.loads(os.environ["TF_CONFIG"])


def test_flags_and_tf_config_take_precedence_over_slurm(environment):
    set_slurm(environment, "n[1-2]", "1(x2)", tasks=2, task=1, here="n2")
    set_workers("one_device", [], None)
    assert "TF_CONFIG" not in os.environ
    set_workers("multi_worker", ["a:1", "b:1"], 0)
    given = os.environ["TF_CONFIG"]
    set_workers("multi_worker", [], None)
    assert os.environ["TF_CONFIG"] == given


def test_incomplete_or_unordered_slurm_variables_are_rejected(environment):
    # TensorFlow's resolver sorts n10 before n2, so the workers would connect to the wrong hosts.
    set_slurm(environment, "n[2,10]", "1(x2)", tasks=2, task=0, here="n2")
    order = ("task 0", "on n2", "n10:8888", "--worker_index=$SLURM_PROCID")
    assert_rejected(order, set_workers, "multi_worker", [], None)
    environment.delenv("SLURM_STEP_NODELIST")
    assert_rejected(("SLURM_STEP_NODELIST", "--worker_hosts"), set_workers, "multi_worker", [], None)


def test_workers_of_different_runs_are_rejected(monkeypatch):
    monkeypatch.setattr(distribution, "is_multi_worker", lambda strategy: True)
    values = {"--learning_rate": 1e-3, "--log_steps": None, "records": ["a"]}
    first: list[float] = []  # sent by a first worker, in the order of its calls
    monkeypatch.setattr(distribution, "_worker_mean", lambda strategy: lambda value: first.append(value) or value)
    distribution.check_same_run(None, 10, "model", values)
    monkeypatch.setattr(distribution, "_worker_mean", lambda strategy: lambda value: (value + sent.pop(0)) / 2)
    for step, changes, names in (
        (20, {}, ("step 20", "model", "--output_dir")),
        (10, {"--log_steps": 3}, "--log_steps"),
        (10, {"--learning_rate": 1e-4, "records": ["b"]}, ("--learning_rate", "records")),
    ):
        sent = first.copy()
        assert_rejected(names, distribution.check_same_run, None, step, "model", {**values, **changes})
    sent = first.copy()
    distribution.check_same_run(None, 10, "model", values)


def test_the_error_about_a_lost_worker_contains_its_reason(monkeypatch):
    monkeypatch.setattr(distribution, "is_multi_worker", lambda strategy: True)
    message = "Graph execution error:\n\nDetected at node x defined at (most recent call last):\n\nECONNRESET"
    with pytest.raises(UserError, match=r"\(ECONNRESET\)"), distribution.explain_lost_workers(None):
        raise tf.errors.UnavailableError(None, None, message)
    monkeypatch.setattr(distribution, "is_multi_worker", lambda strategy: False)
    with pytest.raises(tf.errors.InternalError), distribution.explain_lost_workers(None):  # of a single machine
        raise tf.errors.InternalError(None, None, message)
