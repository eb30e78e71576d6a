"""A run from its options to its files: checks before the first step, initial weights, and the loop."""

import dataclasses
import json
import os
import pathlib
import random
import re
import shutil
import signal
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from official_bert.checkpoints.formats import hugging_face
from official_bert.checkpoints.run_checkpoints import find_newest_step
from official_bert.commands import PRETRAIN
from official_bert.data import record_codec, record_reader, record_schema
from official_bert.data.input_pipeline import RecordSource
from official_bert.optimization.optimizers import Lamb
from official_bert.pretraining import checks, run
from official_bert.pretraining.evaluation import HeldOutEvaluation
from official_bert.pretraining.monitor import Profile
from official_bert.pretraining.run import pretrain
from official_bert.pretraining.run_records import RunRecords
from official_bert.pretraining.train_step import Pretrainer
from official_bert.runs.locks import lock_folder
from official_bert.runs.training_log import read_log
from tests import make
from tests.checkpoints.checkpoint_samples import sample
from tests.event_files import read_scalars
from tests.make import ROOT, WORDS, assert_mentions, assert_rejected, refusal, tiny_config, write_text, write_vocab
from tests.pretraining import pretraining_runs as runs

SWAPPED = [*WORDS[:7], WORDS[8], WORDS[7], *WORDS[9:]]
SECOND = {"phase2_num_train_steps": 3, "phase2_input_file": ["x"]}


@pytest.fixture
def set_up_run(set_up_run, monkeypatch):
    """Sets up runs without their model, which takes most of the time."""
    monkeypatch.setattr(run, "Pretrainer", mock.MagicMock())
    return set_up_run


def test_a_learning_rate_that_never_reaches_its_peak_and_unused_records_are_reported(make_options, capsys):
    second = {**SECOND, "phase2_learning_rate": 0.1, "phase2_num_warmup_steps": 4}
    for changes, names in (
        ({"num_warmup_steps": 19}, ()),
        ({"num_warmup_steps": 20}, ("--learning_rate=0.01", "20 steps", 20, "--num_warmup_steps")),
        ({"num_warmup_steps": 20, **SECOND}, ()),
        (second, ("--phase2_learning_rate=0.1", "3 steps", 4, "--phase2_num_warmup_steps")),
        ({"eval_input_file": ["held.tfrecord"]}, ("--eval_input_file", "--eval_steps", "--do_eval")),
        ({"eval_input_file": ["held.tfrecord"], "eval_steps": 5}, ()),
        ({"eval_input_file": ["held.tfrecord"], "do_eval": True}, ()),
    ):
        checks.warn_of_useless_options(make_options(**changes))
        output = capsys.readouterr().out
        assert_mentions(output, *names)
        assert output.count("\n") == bool(names)


def test_init_checkpoint_sets_weights_and_starts_at_step_zero(make_options, shared_run, tmp_path, capsys, eager_steps):
    pretrain(make_options(init_checkpoint=str(shared_run), num_train_steps=1, learning_rate=1e-9))
    output = capsys.readouterr().out
    assert "  loaded   layer_0_attention_query/kernel\n" in output
    assert re.search(r"30 tensors loaded, 0 missing, 0 unused; \d+ other tensors", output)
    found = runs.checkpoint(tmp_path / "run", 1)
    for name, expected in runs.checkpoint(shared_run, 20).items():
        if name.startswith("model/"):
            np.testing.assert_allclose(found[name], expected, atol=1e-7)
    assert runs.log_values(tmp_path / "run", "step") == [1]


def test_init_checkpoint_needs_the_vocabulary_of_the_records(set_up_run, record_files, vocab_file, finished_run):
    initial = finished_run.rename(finished_run.with_name("initial"))
    changes, names = {"init_checkpoint": str(initial)}, ("--init_checkpoint", initial)
    write_vocab(initial / "vocab.txt", SWAPPED)
    assert_rejected((*names, "line 8", "'c'", "'d'"), set_up_run, vocab_file=vocab_file, **changes)
    runs.write_manifest(record_files, vocab_file)
    assert_rejected((*names, "--vocab_file"), set_up_run, **changes)
    shutil.copy(vocab_file, initial / "vocab.txt")
    set_up_run(**changes)
    (initial / "more").mkdir()
    more = [shutil.copy(record_files[0], initial / "more")]
    runs.write_manifest(more, write_vocab(initial / "other.txt", SWAPPED))
    assert_rejected((*names, "--vocab_file"), set_up_run, input_file=[*record_files, *more], **changes)
    (initial / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert set_up_run(**changes).options.do_lower_case is False
    assert_rejected((*names, "lower-cased"), set_up_run, do_lower_case=True, **changes)


def test_init_checkpoint_of_another_library_is_accepted(set_up_run, vocab_file, tiny_config, tmp_path, capsys):
    exact = dataclasses.replace(tiny_config, hidden_act="gelu_exact")
    hugging_face.write(sample(exact), str(tmp_path / "theirs"))
    changes = {"init_checkpoint": str(tmp_path / "theirs"), "vocab_file": vocab_file}
    for config, warned in (
        (exact, ()),
        (tiny_config, ("hidden_act", "gelu", "--init_checkpoint", "gelu_exact")),
        (dataclasses.replace(exact, layer_norm_eps=0.25), ("layer_norm_eps", 0.25, exact.layer_norm_eps)),
    ):
        set_up_run(config=config, **changes)
        output = capsys.readouterr().out
        assert_mentions(output, *warned)
        assert ("warning" in output) == bool(warned)
    more_heads = dataclasses.replace(exact, num_attention_heads=4)
    assert_rejected(("num_attention_heads", 4, "--init_checkpoint", 2), set_up_run, config=more_heads, **changes)
    write_vocab(pathlib.Path(vocab_file), SWAPPED)
    assert_rejected((vocab_file, "--init_checkpoint", "line 8", "'d'", "'c'"), set_up_run, config=exact, **changes)


def test_a_missing_or_small_vocabulary_is_reported_or_sets_the_size(set_up_run, vocab_file, tmp_path, capsys):
    def warnings(**changes):
        parts = set_up_run(config=tiny_config(vocab_size=100), **changes)
        size = json.loads(parts.model_files["bert_config.json"])["vocab_size"]
        assert parts.config.vocab_size == size
        output = capsys.readouterr().out
        return "--vocab_file" in output, "78 tokens" in output and "100 rows" in output, size

    assert warnings() == (True, False, 100)
    write_vocab(tmp_path / "run" / "vocab.txt")  # from an earlier start
    assert warnings() == (False, False, 100)
    assert warnings(vocab_file=vocab_file) == (False, True, 100)
    assert warnings(vocab_file=vocab_file, vocab_size_from_vocab=True) == (False, False, 78)


def test_all_errors_are_listed_with_the_most_specific_first(make_options, finished_run):
    other = tiny_config(hidden_dropout_prob=0.2, num_hidden_layers=1)
    names = (finished_run / "bert_config.json", "--bert_config_file")
    assert_rejected(names, pretrain, make_options(config=other))
    options = make_options(config=other, input_file=["none-*"], max_seq_length=64, num_train_steps=25)
    first, *mistakes = refusal(pretrain, options).splitlines()
    assert_mentions(first, 4)
    length = ("--max_seq_length", 64, "max_position_embeddings=32")
    expected = (("--input_file", "none-*"), length, ("--num_train_steps", 20, 25), names)
    for mistake, named in zip(mistakes, expected, strict=True):
        assert_mentions(mistake, *named)


BAD_OPTIONS = [
    ({"do_train": False, "do_eval": True}, ["--output_dir", "--init_checkpoint"]),
    ({"bert_config_file": "none.json"}, ["none.json"]),
    ({**SECOND, "phase2_max_seq_length": 64}, ["--phase2_max_seq_length", 64, "max_position_embeddings=32"]),
    ({"max_seq_length": 16}, ["record 0", "input_ids", 12, 16, "--max_seq_length"]),
    ({"max_seq_length": 16, "on_corrupt_record": "skip"}, ["record 0", "input_ids", 12, 16, "--max_seq_length"]),
    ({"init_checkpoint": "none/ckpt"}, ["none/ckpt", "hf://none/ckpt"]),
    ({"vocab_file": str(ROOT / "LICENSE")}, [ROOT / "LICENSE", "[PAD]"]),
    ({"vocab_file": WORDS[:60]}, ["record 7", "input_ids", 60, 0, 59, "--vocab_file"]),
    ({"config": tiny_config(vocab_size=77), "vocab_file": WORDS}, [78, "vocab_size", 77]),
    ({"pack_sequences": True, "left_to_right": True}, ["--pack_sequences"]),
    ({"jit_compile": True, "use_tpu": True}, ["'local'", "--use_tpu"]),
]


@pytest.mark.parametrize(("changes", "names"), BAD_OPTIONS)
def test_bad_options_are_refused_before_the_first_step(changes, names, make_options, tmp_path):
    if isinstance(tokens := changes.get("vocab_file"), list):
        changes = {**changes, "vocab_file": write_vocab(tmp_path / "vocab.txt", tokens)}
    told = refusal(lambda: pretrain(make_options(**changes)))
    assert_mentions(told, *names)
    assert ("\n" in told) == (64 in changes.values())  # this length has two errors, the others one
    assert not list(tmp_path.glob("run/ckpt*"))


def test_a_folder_in_use_by_another_process_is_rejected(make_options):
    options = make_options()
    with lock_folder(options.output_dir, "output_dir"):
        assert_rejected(("--output_dir", options.output_dir, "process"), pretrain, options)


@pytest.mark.parametrize("recipe", ["one_gpu", "eight_gpus", "tpu_v3-8", "tpu_v5e-64"])
def test_recipes_of_the_paper_decay_over_both_phases(recipe):
    files = ["--input_file=x", "--phase2_input_file=x", "--eval_input_file=x", "--output_dir=x"]
    (options,) = PRETRAIN.parse([f"--flagfile={ROOT}/configs/{recipe}.flagfile", *files])
    schedule = run.make_schedule(options)
    steps = (0, 9_999, 10_000, 450_000, 899_999, 900_000, 900_001, 950_000, 1_000_000)
    expected = [0.0, 0.9999e-4, 0.99e-4, 0.55e-4, 1.00001e-5, 1e-5, 0.99999e-5, 5e-6, 0.0]
    assert [float(schedule(step)) for step in steps] == pytest.approx(expected, rel=1e-6)
    assert {phase.train_batch_size for phase in options.phases} == {256}


def test_second_phase_with_a_learning_rate_has_its_own_schedule(make_options):
    second, warmup = {**SECOND, "phase2_num_train_steps": 10, "learning_rate": 0.5}, {"phase2_num_warmup_steps": 2}
    others = {"warmup_jump": False, "decay_power": 2.0, "end_learning_rate": 0.1}
    for rate, changes, steps, expected in (
        (1.0, {}, (2, 10, 19, 20, 21), [0.25, 0.25, 0.025, 1.0, 0.9]),  # the first phase alone warms up
        (1.0, warmup, (2, 10, 19, 20, 21, 22, 29, 30), [0.25, 0.25, 0.025, 0.0, 0.5, 0.8, 0.1, 0.0]),
        (1.1, {**warmup, **others}, (2, 4, 12, 20, 21, 22, 26, 30), [0.25, 0.5, 0.2, 0.0, 0.55, 1.1, 0.35, 0.1]),
    ):
        schedule = run.make_schedule(make_options(phase2_learning_rate=rate, **changes, **second))
        assert [float(schedule(step)) for step in steps] == pytest.approx(expected, abs=1e-6)


def test_calls_end_at_logging_saving_and_evaluation_steps(make_options):
    intervals = {"log_steps": 8, "save_checkpoints_steps": 10, "eval_steps": 7, "eval_input_file": ["x"]}
    options = make_options(num_train_steps=18, iterations_per_loop=5, profile_steps=["3", "13"], **intervals)
    profile = Profile(options.profile_steps, "run")

    def list_ends(seconds_per_step):
        ends = [0]
        while ends[-1] < 18 and len(ends) < 20:
            ends.append(run._choose_end_of_call(options, options.phases[0], profile, ends[-1], seconds_per_step))
        return ends[1:]

    assert list_ends(0.001) == [3, 7, 8, 10, 13, 14, 16, 18]
    assert list_ends(4.0) == [2, 3, 5, 7, 8, 10, 12, 13, 14, 16, 18]
    assert list_ends(None) == list_ends(60.0) == list(range(1, 19))


def test_weights_are_evaluated_at_intervals_and_at_the_end_of_each_phase(make_options):
    assert make_options(num_train_steps=57, log_steps=None, **SECOND).log_interval == 3  # a twentieth of all steps
    changes = {**SECOND, "num_train_steps": 18, "eval_input_file": ["x"]}
    initial = {"eval_steps": 7, "init_checkpoint": "model"}
    for more, expected in (({"eval_steps": 7}, [7, 14, 18, 21]), (initial, [0, 7, 14, 18, 21]), ({}, [])):
        options = make_options(**changes, **more)
        assert [step for step in range(22) if run._is_evaluated(options, step)] == expected


def test_damaged_records_and_bad_values_are_named(make_options, record_files, tmp_path):
    records = [runs.random_record(random.Random(number)) for number in range(8)]
    records[5]["segment_ids"][1] = 7
    any_ids = record_schema.pretraining_schema(runs.LENGTH, runs.PREDICTIONS)
    bad = runs.write_records(tmp_path / "bad.tfrecord", records, any_ids)
    assert_rejected((bad, "record 5", "segment_ids", 7, 0), pretrain, make_options(input_file=[*record_files, bad]))
    make.flip_bits(record_files[1], os.path.getsize(record_files[1]) // 2)
    for changes in ({}, {"init_from_records": True}):
        assert_rejected((record_files[1], "record 25", "byte"), pretrain, make_options(**changes))


def test_at_most_twenty_records_of_a_file_are_named(set_up_run, record_files, monkeypatch):
    parts = set_up_run(input_file=record_files[:1])
    records = parts.records.training(parts.options.phases[0])
    assert records.num_records is None, "there is no manifest"
    monkeypatch.setattr(RecordSource, "locate_records", lambda *arguments: [(record_files[0], 0)] * arguments[-1])
    for number, is_cut in ((20, False), (21, True)):
        located = records.describe_locations(7, 0, number)
        assert (located.count(","), located.endswith(" ...")) == (19, is_cut)


def test_batches_and_flags_that_do_not_suit_the_replicas_are_refused(make_options):
    on_tpu = {"use_tpu": True, "num_tpu_cores": 8}
    checks.check_replicas(make_options(**on_tpu), 8)
    for changes, replicas, names in (
        ({"eval_batch_size": 12}, 8, ("--eval_batch_size", 12, 8)),
        ({"train_batch_size": 12, "gradient_accumulation_steps": 2}, 4, ("--train_batch_size", 12, 8)),
        ({**SECOND, "phase2_train_batch_size": 12}, 8, ("--phase2_train_batch_size", 12, 8)),
        ({"jit_compile": True}, 2, "--jit_compile"),
        (on_tpu, 4, ("--num_tpu_cores", 8, 4)),
        (on_tpu, 16, ("--num_tpu_cores", 8, 16)),
    ):
        assert_rejected(names, checks.check_replicas, make_options(**changes), replicas)


def test_empty_files_are_left_out(set_up_run, record_files, tmp_path, capsys):
    empty = write_text(tmp_path / "empty.tfrecord", "")
    set_up_run(input_file=[*record_files, empty])
    assert_mentions(capsys.readouterr().out, empty)
    assert_rejected((empty, "make-records"), set_up_run, input_file=[empty, empty])


@pytest.fixture
def casing(set_up_run, vocab_file):
    """Sets up a run with a vocabulary, and returns whether it lower-cases text and strips accents, as in run.json."""

    def get_casing(**changes):
        parts = set_up_run(vocab_file=vocab_file, **changes)
        settings = json.loads(parts.model_files["tokenizer_config.json"])
        assert settings.items() <= parts.metadata["flags"].items()
        return settings["do_lower_case"], settings.get("strip_accents")

    return get_casing


def test_accents_are_kept_as_the_records_manifest_says(casing, record_files, vocab_file, tmp_path):
    assert (casing(), casing(strip_accents=False)) == ((True, None), (True, False))
    stored = tmp_path / "run" / "tokenizer_config.json"
    write_text(stored, '{\n  "do_lower_case": true,\n  "strip_accents": false\n}\n')
    assert casing() == (True, False)
    stored.unlink()
    runs.write_manifest(record_files, vocab_file, do_lower_case=True, strip_accents=False)
    assert casing() == (True, False)
    assert_rejected(("--strip_accents", "--input_file", "accents"), casing, strip_accents=True)
    hugging_face.write(sample(tiny_config(num_hidden_layers=1)), str(tmp_path / "initial"))
    names = ("--init_checkpoint", tmp_path / "initial", "lower-cased", "accents")
    assert_rejected(names, casing, init_checkpoint=str(tmp_path / "initial"))
    runs.write_manifest(record_files, vocab_file, do_lower_case=True)
    assert_rejected(("--nostrip_accents", "--input_file"), casing, strip_accents=False)


def test_the_casing_comes_from_the_manifest_or_the_vocabulary(casing, record_files, vocab_file, tmp_path, capsys):
    write_vocab(pathlib.Path(vocab_file), [*WORDS[:-2], "Anna", "Berlin"])
    assert casing() == (False, None)
    assert_rejected((vocab_file, "'Anna'", "--do_lower_case=false"), casing, do_lower_case=True)
    runs.write_manifest(record_files, vocab_file, do_lower_case=True)
    assert_rejected((vocab_file, "'Anna'", "records", "--do_lower_case=false"), casing)
    runs.write_manifest(record_files, vocab_file, do_lower_case=False)
    assert_rejected(("--do_lower_case", "--input_file"), casing, do_lower_case=True)
    # A folder from an older version, which stored the flag's default.
    write_text(tmp_path / "run" / "tokenizer_config.json", '{"do_lower_case": true}')
    assert casing() == (False, None)
    assert "tokenizer_config.json is replaced, because it contradicts the records' manifest" in capsys.readouterr().out


def test_flags_are_passed_to_the_optimizer_and_to_the_training_step(set_up_run, monkeypatch):
    build = mock.Mock(wraps=Pretrainer)
    monkeypatch.setattr(run, "Pretrainer", build)
    flags = {"on_nonfinite": "skip", "gradient_accumulation_steps": 2, "rematerialize": True, "dtype": "bfloat16"}
    flags |= {"weight_decay": 0.2, "adam_beta1": 0.8, "max_grad_norm": 0, "optimizer": "lamb"}
    parts = set_up_run(**flags, freeze=["layer_0_.*"], next_sentence_prediction=False, deterministic=True)
    expected = {"skip_nonfinite": True, "micro_batches": 2, "rematerialize": True, "dtype": "mixed_bfloat16"}
    expected |= {"frozen": ["layer_0_.*"], "next_sentence": False, "packed": False, "times_input": False}
    assert expected.items() <= build.call_args.kwargs.items()
    optimizer = parts.pretrainer.optimizer
    numbers = (optimizer.weight_decay_rate, optimizer.beta_1, optimizer.clip_norm)
    assert (type(optimizer), *numbers) == (Lamb, 0.2, 0.8, None)
    assert flags.items() <= parts.metadata["flags"].items()


FILES = """bert_config.json vocab.txt tokenizer_config.json checkpoint ckpt-5.index ckpt-5.data-00000-of-00001
train.jsonl eval.jsonl train eval eval_results.txt run.json MODEL_CARD.md checksums.json"""
SCORES = ["loss", "masked_lm_accuracy", "masked_lm_loss", "next_sentence_accuracy", "next_sentence_loss"]
MEASURED = """learning_rate gradient_norm steps_per_second examples_per_second tokens_per_second input_wait_share
max_seq_length processor_seconds"""


def test_a_run_writes_all_documented_files(make_options, record_files, vocab_file, tmp_path, capsys, eager_steps):
    folder, steps = tmp_path / "run", {"num_train_steps": 3, "phase2_num_train_steps": 2, "keep_checkpoint_max": 1}
    changes = {**steps, **runs.PHASE2_SIZES, "phase2_input_file": record_files, "phase2_train_batch_size": 4}
    assert pretrain(make_options(do_eval=True, vocab_file=vocab_file, eval_batch_size=40, **changes)) == 0
    assert {path.name for path in folder.iterdir()} == {*FILES.split()}
    assert "4 files have no manifest" in (folder / "MODEL_CARD.md").read_text()
    printed = re.findall("^step .*", capsys.readouterr().out, re.MULTILINE)
    # The first step of each phase compiles.
    assert ["examples/s" in line for line in printed] == [False, True, True, False, True]
    assert tf.train.load_variable(str(folder), "place/position/.ATTRIBUTES/VARIABLE_VALUE") == 2 * 4
    lines = read_log(str(folder), "train")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert set(lines[0]) == {"step", *SCORES, *MEASURED.split()}
    assert [lines[step]["learning_rate"] for step in (0, 4)] == pytest.approx([0.0, 1e-2 * (1 - 4 / 5)])
    results = dict(line.split(" = ") for line in (folder / "eval_results.txt").read_text().splitlines())
    assert list(results) == ["global_step", *SCORES]
    assert results["global_step"] == "5"
    assert set(read_scalars(folder / "train")) == set(lines[0]) - {"step"}
    assert set(read_scalars(folder / "eval")) == {*SCORES, "predictions"}


@pytest.mark.parametrize("step", [20, 21])
@pytest.mark.usefixtures("eager_steps")
def test_no_step_follows_a_stop_in_an_evaluation(step, make_options, record_files, finished_run, monkeypatch, capsys):
    def evaluate_until_sigterm(_, is_stopping):
        os.kill(os.getpid(), signal.SIGTERM)
        return not is_stopping()

    monkeypatch.setattr(HeldOutEvaluation, "evaluate_checkpoint", evaluate_until_sigterm)
    changes = {"num_train_steps": 30, "allow_changes": ["num_train_steps"], "eval_input_file": record_files}
    assert pretrain(make_options(eval_steps=step, **changes)) == 128 + signal.SIGTERM
    assert capsys.readouterr().out.endswith(f"stopped at step {step}; run the same command to resume\n")
    assert runs.log_values(finished_run, "step")[-1] == step
    assert find_newest_step(str(finished_run)) == step


@pytest.mark.slow
def test_deterministic_runs_save_the_same_bytes(record_files, config_file, tmp_path):
    environment = {"TF_NUM_INTRAOP_THREADS": "4", "TF_NUM_INTEROP_THREADS": "4"}
    flags = ("--do_eval", f"--eval_input_file={record_files[1]}", "--num_train_steps=5", "--deterministic")
    saved = []
    for name in ("one", "other"):
        _, *command = runs.pretrain_command(record_files, config_file, tmp_path / name, *flags)
        done = make.run_python(*command, environment=environment)
        assert done.returncode == 0, done.stderr
        saved.append({path.name: path.read_bytes() for path in (tmp_path / name).glob("ckpt-5.*")})
    assert len(saved[0]) == 2
    assert saved[1] == saved[0]
    assert json.loads((tmp_path / "one" / "run.json").read_text())["flags"]["deterministic"] is True


@pytest.mark.usefixtures("eager_steps")
def test_a_loss_that_is_not_finite_stops_the_run_and_its_records_are_named(make_options, tiny_config):
    # The first step uses random weights and is finite. At this learning rate it makes the weights useless.
    options = make_options(learning_rate=1e30, num_warmup_steps=0)
    message = refusal(pretrain, options)
    assert_mentions(message, "step 2", "nan")
    found = re.findall(r"([\w/.-]+\.tfrecord): ([\d, ]+)", message)
    named = [list(record_reader.read_file(path))[int(each)] for path, those in found for each in those.split(", ")]
    # The second batch read by training.
    records = RunRecords(options, tiny_config, replicas=1).training(options.phases[0])
    batch = list(records.training_batches(8, options.random_seed, 0).take(2))[1]
    encoded = record_codec.encode({name: np.asarray(value) for name, value in batch.items()}, runs.SCHEMA)
    assert len(set(named)) == 8
    assert sorted(named) == sorted(encoded)


@pytest.mark.slow
def test_calls_become_longer_once_the_step_time_is_known(make_options, tmp_path, monkeypatch):
    train = mock.create_autospec(Pretrainer.train, side_effect=Pretrainer.train)
    monkeypatch.setattr(Pretrainer, "train", train)
    pretrain(make_options("quick", log_steps=20))
    assert [call.args[2] for call in train.call_args_list] == [1, 1, 8, 10]
    train.reset_mock()
    monkeypatch.setattr(run, "_MAX_CALL_SECONDS", 1e-9)
    pretrain(make_options("slow", log_steps=20, profile_steps=["3", "5"]))
    assert [call.args[2] for call in train.call_args_list] == [1] * 20
    assert runs.log_values(tmp_path / "quick") == runs.log_values(tmp_path / "slow")
    assert list((tmp_path / "slow" / "train").rglob("*.xplane.pb"))
