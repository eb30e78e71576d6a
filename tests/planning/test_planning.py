import dataclasses
import itertools
import json
import pathlib
import re
import shlex
import signal
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import pytest

from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.pretraining import cost
from official_bert.pretraining.devices import BATCH, Device
from official_bert.pretraining.scaling_law import FINAL, Reached, ScalingLaw, block_parameters
from official_bert_cli import load
from planning import machine, on_devices, pilot, planning, recipe
from planning.machine import Speed
from planning.options import COUNTED, Options
from planning.recipe import passes_over, tokens_of, warmup_of
from planning.text import TextCounts
from tests.conftest import ROOT

WORDS = "the cat dog sat ran on mat in sun play walk and tree house water stone light river road hill".split()


@pytest.fixture
def corpus(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "text.txt"
    sentences = [" ".join(WORDS[(3 * i + j * (i % 5 + 1)) % len(WORDS)] for j in range(9)) + "." for i in range(900)]
    path.write_text("\n\n".join("\n".join(sentences[i : i + 9]) for i in range(0, 900, 9)) + "\n")
    return str(path)


FIRST, SECOND, THIRD = pilot.STEPS
REACHED = [Reached(loss, tokens_of(steps), 4e5) for loss, steps in zip((2.5, 2.2, 2.0), pilot.STEPS, strict=True)]


@pytest.fixture(autouse=True)
def speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which a step takes as many microseconds as the model has weights in its blocks, and pilots' losses.

    Of words in a short order the entropy is about 3 nats; a loss of 2.5 says that a pilot has learned something.
    """
    monkeypatch.setattr(pilot, "train", lambda _options, _counts, steps, _dtype: REACHED[pilot.STEPS.index(steps)])
    monkeypatch.setattr(
        machine,
        "measure",
        lambda config, part, _: Speed(1.0, 1e-9 * config.hidden_size**2 * part.length * 32, "float32"),
    )


def options(corpus: str, tmp_path: pathlib.Path, **changes: object) -> Options:
    return Options(**{"input_file": [corpus], "minutes": 3.0, "output_dir": str(tmp_path / "plan"), **changes})


def counts_of(made: Mapping[str, Any]) -> TextCounts:
    return TextCounts(made["text_tokens"], 100, made["unigram_loss"], made["vocab_size"], pairs=True)


def unwanted(*_: object) -> NoReturn:
    raise AssertionError("it ran")


def test_a_plan_says_what_to_train_and_what_comes_out(corpus: str, tmp_path: pathlib.Path, capsys):
    assert planning.run(options(corpus, tmp_path, json=True)) == 0
    made = json.loads(capsys.readouterr().out)
    assert made == json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert made["expected_loss_low"] < made["expected_loss"] < made["expected_loss_high"] < made["unigram_loss"] * 1.2
    assert made["tokens"] == sum(each["steps"] * each["max_seq_length"] for each in made["phases"]) * 32
    assert made["expected_minutes"] <= 3
    # Each command can be parsed by the program that it is for.
    for line in made["commands"]:
        program, command, *flags = shlex.split(line)
        assert program == "official-bert"
        load(command).parse(flags)
    assert [shlex.split(line)[1] for line in made["commands"]] == ["make-records"] * 2 + ["pretrain"]


@pytest.mark.parametrize(
    ("dtype", "flags"),
    [("float32", {"--dtype=float32", "--jit_compile"}), ("bfloat16", {"--dtype=bfloat16", "--nojit_compile"})],
)
def test_pilots_and_commands_compute_as_is_fastest_on_this_machine(
    corpus: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys, dtype: str, flags: set[str]
):
    pilots = []

    def train(_options: object, _counts: object, steps: int, dtype: str) -> Reached:
        pilots.append(dtype)
        return REACHED[pilot.STEPS.index(steps)]

    monkeypatch.setattr(pilot, "train", train)
    monkeypatch.setattr(machine, "measure", lambda *_: Speed(1.0, 0.01, dtype))
    planning.run(options(corpus, tmp_path))
    assert set(pilots) == {dtype}
    made = json.loads((tmp_path / "plan" / "plan.json").read_text())
    *_, line = (shlex.split(each) for each in made["commands"])
    assert flags < set(line)
    load(line[1]).parse(line[2:])
    assert f"steps of 32 x 64 tokens in {dtype}, rate" in capsys.readouterr().out
    assert made["memory_bytes"] == cost.memory_estimate(
        BertConfig.from_dict(made["config"]), 32, 64, 13, dtype
    ).total  # fmt: skip


def test_commands_compute_as_is_fastest_for_the_size_that_is_chosen(
    corpus: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    def measure(config: BertConfig, *_: object) -> Speed:
        is_mini = config.hidden_size == recipe.SIZES[1].width
        return Speed(1.0, 0.0001 if is_mini else 1.0, "bfloat16" if is_mini else "float32")

    monkeypatch.setattr(machine, "measure", measure)
    made = planning.plan(options(corpus, tmp_path))
    assert made["model"] == "BERT-Mini"
    assert made["phases"][0]["dtype"] == "bfloat16"
    assert "--dtype=bfloat16" in made["commands"][-1]


def test_a_plan_of_before_bfloat16_is_one_in_float32(corpus: str, tmp_path: pathlib.Path, capsys):
    made = planning.plan(options(corpus, tmp_path))
    del made["phases"][0]["dtype"]
    (tmp_path / "plan" / "plan.json").write_text(json.dumps(made))
    planning.run(options(corpus, tmp_path))
    assert "steps of 32 x 64 tokens in float32, rate" in capsys.readouterr().out


def test_a_small_text_and_a_short_time_are_said(corpus: str, tmp_path: pathlib.Path, capsys):
    planning.run(options(corpus, tmp_path))
    shown = capsys.readouterr().out
    assert "the text is too small for the time: its 8," in shown
    assert "official-bert adapt --init=bert-mini" in shown
    half = json.loads((tmp_path / "plan" / "plan.json").read_text())
    known = planning.Known.of(counts_of(half), REACHED[:2], ScalingLaw.read(FINAL))
    steps = half["phases"][0]["steps"] // 2
    loss = known.expected_loss(BertConfig.from_dict(half["config"]), steps)
    assert f"half of the time would come to {loss:.3f}" in shown


def test_too_little_time_is_refused_before_the_pilot(
    corpus: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pilot, "train", unwanted)
    monkeypatch.setattr(machine, "measure", lambda *_: Speed(20.0, 1.0, "float32"))
    with pytest.raises(UserError, match=r"0.6 minutes are too short: to start .* takes at least \d+ seconds; give"):
        planning.run(options(corpus, tmp_path, minutes=0.6))
    monkeypatch.setattr(machine, "measure", unwanted)
    with pytest.raises(UserError, match=r"0.5 minutes are too short: .* takes at least 31 seconds; give more time"):
        planning.run(options(corpus, tmp_path, minutes=0.5))


def test_a_pilot_that_learned_nothing_is_said_and_nothing_better_expected(
    corpus: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pilot, "train", lambda *_: Reached(3.4, tokens_of(FIRST), 4e5))
    made = planning.plan(options(corpus, tmp_path))
    assert made["expected_loss"] == 3.4
    assert made["model"] == "BERT-Tiny"
    (note,) = (each for each in made["notes"] if "adapt --init" not in each)
    assert note.startswith(
        f"the pilot learned nothing: its loss is 3.400, that of guessing by frequency {made['unigram_loss']:.3f}"
    )


@pytest.mark.parametrize(("losses", "has_learned"), [((2.2, 3.4), False), ((3.4, 2.2), True)])
def test_the_last_pilot_says_whether_anything_was_learned(
    corpus: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, losses: tuple[float, float], has_learned: bool
):
    reached = iter([dataclasses.replace(each, loss=loss) for each, loss in zip(REACHED, losses, strict=False)])
    monkeypatch.setattr(pilot, "train", lambda *_: next(reached))
    made = planning.plan(options(corpus, tmp_path, minutes=6.0))
    assert any("the pilot learned nothing" in each for each in made["notes"]) is not has_learned
    assert (made["expected_loss"] == 3.4) is not has_learned


def test_what_is_known_of_a_text_has_its_own_floor():
    law, counts = ScalingLaw.read(FINAL), TextCounts(1e9, 100, 3.0, 100, pairs=True)
    known = planning.Known.of(counts, REACHED[:2], law)
    assert known.law == law.of_text(REACHED[:2], 3.0, 1e9) != law
    assert known.reached == REACHED[1]
    # Of a text that is not read again and again, less is expected with every step.
    size = recipe.SIZES[0]
    limits = planning._expected_on_the_way(known, planning.Candidate(size, size.config(100), 4000, 60.0, "float32"))
    assert len(limits) == 10
    assert all(later < earlier for (_, earlier), (_, later) in itertools.pairwise(limits))


def test_the_size_with_the_lowest_loss_is_chosen(corpus: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    def loss_later(_: ScalingLaw, reached: Reached, tokens: float, parameters: float, *text: float) -> float:
        return abs(parameters - 3.2e6) / 1e7

    monkeypatch.setattr(ScalingLaw, "loss_later", loss_later)
    made = planning.plan(options(corpus, tmp_path))
    assert made["model"] == "BERT-Mini"
    assert made["phases"][0]["learning_rate"] == recipe.SIZES[1].learning_rate


def test_the_same_plan_is_read_again_and_another_refused(corpus: str, tmp_path: pathlib.Path):
    first = planning.plan(options(corpus, tmp_path))
    assert planning.plan(options(corpus, tmp_path, run=True)) == first
    with pytest.raises(UserError, match=r"plan holds another plan: --minutes was 3.0 and is 4.0; give the same"):
        planning.plan(options(corpus, tmp_path, minutes=4.0))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"full holds other files \(notes.txt\)"):
        planning.plan(options(corpus, tmp_path, output_dir=str(tmp_path / "full")))


def test_a_plan_knows_its_text_again(corpus: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    first = planning.plan(options(corpus, tmp_path))
    text = pathlib.Path(corpus).read_text()
    pathlib.Path(corpus).write_text(text.replace("cat", "dog"))  # of the same length
    with pytest.raises(
        UserError, match=r"--input_file has changed since: .*text.txt was [\d,]+ bytes, crc32 \w+, and is"
    ):
        planning.plan(options(corpus, tmp_path))
    pathlib.Path(corpus).unlink()
    assert planning.plan(options(corpus, tmp_path)) == first  # which is made, and can be trained
    assert re.search(r"note: .*text.txt.*; what was read of it before is used", capsys.readouterr().out)


@pytest.mark.parametrize("held", [
    [], {}, {"options": []}, {"options": {}, "files": {}}, {"options": {}, "files": {}, "counts": {}, "pilots": {}},
    {"options": {}, "files": {}, "config": [], "commands": []},
])  # fmt: skip
def test_a_damaged_plan_is_named(corpus: str, tmp_path: pathlib.Path, held: object):
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / "plan.json").write_text(json.dumps(held))
    with pytest.raises(UserError, match=r"plan.json is no plan, or damaged; remove it, or give another --output_dir"):
        planning.plan(options(corpus, tmp_path))


@pytest.mark.parametrize(("content", "cause"), [("{", "is not valid JSON: .*"), ("[" * 99999, "nests .* to be read")])
def test_a_plan_that_cannot_be_read_says_why(corpus: str, tmp_path: pathlib.Path, content: str, cause: str):
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / "plan.json").write_text(content)
    with pytest.raises(UserError, match=f"plan.json {cause}; mend it, or give another --output_dir"):
        planning.plan(options(corpus, tmp_path))


def test_the_command_that_is_proposed_reads_the_text_alike(corpus: str, tmp_path: pathlib.Path):
    lines = [json.dumps({"body": each, "text": "other"}) for each in pathlib.Path(corpus).read_text().split("\n\n")]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    made = planning.plan(options(str(tmp_path / "rows.jsonl"), tmp_path, text_field="body"))
    (note,) = (each for each in made["notes"] if "adapt --init" in each)
    words = shlex.split(note.partition("official-bert ")[2])
    assert {"--init=bert-mini", f"--input_file={tmp_path / 'rows.jsonl'}", "--text_field=body"} < set(words)
    load("adapt").parse(words[1:])


@pytest.mark.parametrize(("share", "message"), [
    (0.0001, r"--heldout_share=0.0001 holds \d+ characters of the text out; expected at least 1,000"),
    (0.9, r"expected at least 2,000: give more text, hold less than --heldout_share=0.9 of it out"),
])  # fmt: skip
def test_a_share_that_leaves_too_little_is_named(corpus: str, tmp_path: pathlib.Path, share: float, message: str):
    with pytest.raises(UserError, match=message):
        planning.plan(options(corpus, tmp_path, heldout_share=share))


def test_steps_fill_the_time(corpus: str, tmp_path: pathlib.Path):
    made = planning.plan(options(corpus, tmp_path))
    (phase,) = made["phases"]
    step = 1e-9 * made["config"]["hidden_size"] ** 2 * phase["max_seq_length"] * 32
    assert made["expected_minutes"] == pytest.approx(3, abs=0.1)
    assert 150 - 20 < step * phase["steps"] < 180 - 1  # start, records and evaluation take the rest


def test_a_small_text_is_read_often():
    assert tokens_of(3000) == 32 * 64 * 3000
    assert [passes_over(tokens, 3000) for tokens in (1e4, 2e6, 1e8)] == [10, 4, 1]
    assert [warmup_of(steps) for steps in (1, 800, 80_000)] == [1, 100, 300]


@pytest.mark.parametrize(("changes", "message"), [
    ({"minutes": None}, "give --minutes or --hours, how long the commands may take; neither is given"),
    ({"hours": 1.0}, "both are given"),
    ({"minutes": -1.0}, "--minutes is -1.0; expected a positive number"),
    ({"minutes": float("nan")}, "--minutes is nan; expected a positive number"),
    ({"devices": 12}, "--devices is 12; expected one of 8, 64, 256, for which steps were counted"),
    ({"devices": 8, "run": True}, "--run is given with --devices; give the commands where the devices are"),
    ({"devices": 8, "device_tflops": -1.0}, "--device_tflops is -1.0; expected a positive number"),
    ({"device_dollars": 1.0}, "--device_dollars is given without --devices"),
    ({"heldout_share": 1.0}, "--heldout_share is 1.0; expected a share between 0 and 1"),
    ({"heldout_share": 0.0}, "--heldout_share is 0.0; expected a share between 0 and 1"),
    ({"random_seed": -1}, "--random_seed is -1; expected at least 0"),
    ({"output_dir": "gs://bucket/plan"}, "is not on this machine"),
    ({"output_dir": "plans,one"}, "--output_dir is plans,one; expected no comma"),
])  # fmt: skip
def test_what_cannot_be_planned_is_refused(changes: dict[str, object], message: str, tmp_path: pathlib.Path):
    with pytest.raises(UserError, match=message):
        options("text.txt", tmp_path, **changes)


def test_text_that_is_not_there_or_too_short_leaves_no_plan(tmp_path: pathlib.Path):
    with pytest.raises(UserError, match="none.txt"):
        planning.plan(options(str(tmp_path / "none.txt"), tmp_path))
    (tmp_path / "short.txt").write_text("the cat sat on the mat.\n\nthe dog ran in the sun.\n\nthe cat ran.\n" * 3)
    with pytest.raises(UserError, match=r"tokens to train on; expected at least 2,000"):
        planning.plan(options(str(tmp_path / "short.txt"), tmp_path))
    assert not (tmp_path / "plan" / "plan.json").exists()


@pytest.mark.parametrize(("minutes", "pilots"), [(1.5, REACHED[:1]), (6.0, REACHED[:2]), (20.0, REACHED)])
def test_what_is_expected_begins_with_what_the_pilots_reached(
    corpus: str, tmp_path: pathlib.Path, minutes: float, pilots: list[Reached]
):
    made = planning.plan(options(corpus, tmp_path, minutes=minutes))
    assert made["pilots"] == [dataclasses.asdict(each) for each in pilots]
    steps, text = made["phases"][0]["steps"], (made["unigram_loss"], made["text_tokens"])
    law = ScalingLaw.read(FINAL).of_text(pilots, *text)
    parameters = block_parameters(BertConfig.from_dict(made["config"]))
    expected = law.loss_later(pilots[-1], tokens_of(steps), parameters, *text)
    assert made["expected_loss"] == pytest.approx(expected, abs=1e-3)
    # On the way, from the pilot's steps on, to where the plan ends.
    counts = counts_of(made)
    limits = made["phases"][0]["expected_losses"]
    known = planning.Known(counts, pilots, law)
    for step, limit in limits:
        loss = known.expected_loss(BertConfig.from_dict(made["config"]), step)
        assert limit == pytest.approx(law.interval(loss)[1], abs=1e-3)
    assert all(later <= earlier for (_, earlier), (_, later) in itertools.pairwise(limits))
    assert [step for step, _ in limits] == [
        steps * tenth // 10 for tenth in range(1, 11) if steps * tenth // 10 >= FIRST
    ]
    first, *_, last = limits
    assert first[0] >= FIRST  # before the pilot's steps nothing is expected
    assert last == [steps, pytest.approx(made["expected_loss_high"], abs=1e-3)]


@pytest.mark.parametrize(("program", "message"), [
    ("print('a warning', file=sys.stderr); raise SystemExit('error: the disk is full')",
     "the pilot's make-records failed: error: the disk is full"),
    ("os.kill(os.getpid(), 9)", "the pilot's make-records ended by SIGKILL: it said nothing"),
    ("sys.stderr.buffer.write(bytes([255])); sys.exit(1)", "the pilot's make-records failed: \ufffd"),
])  # fmt: skip
def test_a_pilot_whose_command_fails_says_which(
    corpus: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, program: str, message: str
):
    monkeypatch.undo()
    monkeypatch.setattr(machine, "measure", lambda *_: Speed(1.0, 0.01, "float32"))
    monkeypatch.setattr(pilot, "process_of", lambda line: [sys.executable, "-c", f"import os, sys; {program}"])
    with pytest.raises(UserError, match=re.escape(message) + "$"):
        planning.plan(options(corpus, tmp_path))
    assert "commands" not in json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert not (tmp_path / "plan" / "pilot").exists()


def test_a_plan_that_was_stopped_goes_on_with_its_pilots(
    corpus: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    asked: list[int] = []
    stopped = {SECOND}

    def train(_options: object, _counts: object, steps: int, _dtype: str) -> Reached:
        asked.append(steps)
        if steps in stopped:
            raise KeyboardInterrupt
        return REACHED[pilot.STEPS.index(steps)]

    monkeypatch.setattr(pilot, "train", train)
    with pytest.raises(KeyboardInterrupt):
        planning.plan(options(corpus, tmp_path, minutes=6.0))
    counted = (tmp_path / "plan" / "text" / "vocab.txt").stat().st_mtime_ns
    with pytest.raises(UserError, match="holds another plan: --random_seed was 12345 and is 7"):
        planning.plan(options(corpus, tmp_path, minutes=6.0, random_seed=7))
    stopped.clear()
    text = pathlib.Path(corpus).read_text()
    pathlib.Path(corpus).write_text(text.replace("cat", "dog"))  # of the same length
    with pytest.raises(UserError, match="--input_file has changed since"):
        planning.plan(options(corpus, tmp_path, minutes=6.0))
    pathlib.Path(corpus).write_text(text)
    made = planning.plan(options(corpus, tmp_path, minutes=None, hours=1 / 3))  # the time alone is another
    assert asked == [FIRST, SECOND, SECOND, THIRD]
    assert "pilot: held-out masked LM loss 2.500, as trained before" in capsys.readouterr().out
    assert (tmp_path / "plan" / "text" / "vocab.txt").stat().st_mtime_ns == counted
    assert made["pilots"] == [dataclasses.asdict(each) for each in REACHED]
    assert made["minutes"] == 20.0
    assert planning.plan(options(corpus, tmp_path, minutes=None, hours=1 / 3)) == made
    with pytest.raises(UserError, match=r"--minutes was None and is 6.0"):  # now it is made
        planning.plan(options(corpus, tmp_path, minutes=6.0))


def stopped_plan(corpus: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a plan that is stopped after all pilots holds."""
    with monkeypatch.context() as patch:
        patch.setattr(planning, "_choose", unwanted)
        with pytest.raises(AssertionError, match="it ran"):
            planning.plan(options(corpus, tmp_path, minutes=20.0))
    held = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert len(held["pilots"]) == 3
    return held


def test_a_shorter_plan_takes_the_pilots_that_it_would_have_trained(
    corpus: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    stopped_plan(corpus, tmp_path, monkeypatch)
    made = planning.plan(options(corpus, tmp_path, minutes=6.0))
    assert made["pilots"] == [dataclasses.asdict(each) for each in REACHED[:2]]


def test_a_stopped_plan_whose_text_or_values_are_damaged_is_named(
    corpus: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    held = stopped_plan(corpus, tmp_path, monkeypatch)
    path = tmp_path / "plan" / "plan.json"
    first, *others = held["pilots"]
    for pilots in (
        [{}], [1.0], [{**first, "loss": None}], [{**first, "loss": "2.5"}], [{**first, "loss": True}],
        [{**first, "loss": -1.0}], [{**first, "loss": float("nan")}], [{**first, "parameters": 0}], [first, first],
        others,
    ):  # fmt: skip
        path.write_text(json.dumps({**held, "pilots": pilots}))
        with pytest.raises(UserError, match="plan.json is no plan, or damaged; remove it"):
            planning.plan(options(corpus, tmp_path, minutes=20.0))
    for name, value in (("tokens", 0), ("tokens", "9"), ("unigram_entropy", None), ("pairs", 1), ("vocab_size", 0)):
        path.write_text(json.dumps({**held, "counts": {**held["counts"], name: value}}))
        with pytest.raises(UserError, match="plan.json is no plan, or damaged; remove it"):
            planning.plan(options(corpus, tmp_path, minutes=20.0))
    path.write_text(json.dumps(held))
    (tmp_path / "plan" / "text" / "heldout.txt").unlink()
    with pytest.raises(
        UserError, match=r"text has no heldout.txt, .*; restore it, or remove .*plan.json to begin anew"
    ):
        planning.plan(options(corpus, tmp_path, minutes=20.0))
    # What the errors advise; a pilot that was killed has left its folder.
    path.unlink()
    (tmp_path / "plan" / "pilot" / "text").mkdir(parents=True)
    assert planning.plan(options(corpus, tmp_path, minutes=20.0))["pilots"] == held["pilots"]
    assert (tmp_path / "plan" / "text" / "heldout.txt").exists()


@pytest.mark.parametrize("changes", [{"config": {}}, {"unigram_loss": "x"}, {"notes": None}, {"commands": [1]}])
def test_a_damaged_plan_that_was_made_is_named(corpus: str, tmp_path: pathlib.Path, changes: dict[str, object]):
    made = planning.plan(options(corpus, tmp_path))
    (tmp_path / "plan" / "plan.json").write_text(json.dumps({**made, **changes}))
    with pytest.raises(UserError, match="plan.json is no plan, or damaged; remove it"):
        planning.plan(options(corpus, tmp_path))


def test_a_pilot_whose_loss_is_no_number_has_failed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    (tmp_path / "plan" / "text").mkdir(parents=True)
    for name in ("domain.txt", "heldout.txt", "vocab.txt"):
        (tmp_path / "plan" / "text" / name).write_text("a line.\n")
    monkeypatch.setattr(pilot, "process_of", lambda _: [sys.executable, "-c", ""])
    monkeypatch.setattr(pilot, "reached_loss", lambda _: float("nan"))
    with pytest.raises(UserError, match="the pilot's held-out loss is nan: its training has failed"):
        pilot.train(options("text.txt", tmp_path), TextCounts(1e4, 100, 6.0, 100, pairs=True), FIRST, "float32")
    assert not (tmp_path / "plan" / "pilot").exists()


def test_a_pilot_trains_tiny_on_a_part_of_the_text(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    text, folder = tmp_path / "plan" / "text", tmp_path / "plan" / "pilot"
    text.mkdir(parents=True)
    (text / "domain.txt").write_text("a line of the text.\n" * 5000)
    (text / "heldout.txt").write_text("a line of other text.\n")
    (text / "vocab.txt").write_text("[PAD]\nline\n")
    (folder / "of a pilot that was killed").mkdir(parents=True)
    lines: list[list[str]] = []
    parts: list[int] = []

    def process_of(line: str) -> list[str]:
        lines.append(shlex.split(line)[1:])
        assert not (folder / "of a pilot that was killed").exists()
        if lines[-1][0] == "pretrain":
            assert (folder / "text" / "heldout.txt").read_text() == (text / "heldout.txt").read_text()
            assert (folder / "text" / "vocab.txt").read_text() == (text / "vocab.txt").read_text()
            config = recipe.SIZES[0].config(8000)
            assert json.loads((folder / "bert_config.json").read_text()) == json.loads(config.to_json())
            parts.append((folder / "text" / "domain.txt").stat().st_size)
            (folder / "model").mkdir()
            (folder / "model" / "eval_results.txt").write_text("loss = 3.5\nmasked_lm_loss = 2.5\n")
        return [sys.executable, "-c", ""]

    monkeypatch.setattr(pilot, "process_of", process_of)
    counts = TextCounts(40e6, 100, 6.0, 8000, pairs=True)
    tiny = block_parameters(recipe.SIZES[0].config(8000))
    for steps in pilot.STEPS:
        lines.clear()
        reached = pilot.train(options("text.txt", tmp_path), counts, steps, "bfloat16")
        assert reached == Reached(2.5, tokens_of(steps), tiny)
        (make, *learned), (_, *heldout), (pretrain, *training) = lines
        assert (make, pretrain) == ("make-records", "pretrain")
        assert {f"--input_file={folder / 'text' / 'domain.txt'}", "--dupe_factor=1"} < set(learned)
        assert f"--input_file={folder / 'text' / 'heldout.txt'}" in heldout
        heldout_records = next(each.partition("=")[2] for each in heldout if each.startswith("--output_file="))
        assert {f"--num_train_steps={steps}", f"--eval_input_file={heldout_records}"} < set(training)
        assert {"--dtype=bfloat16", "--nojit_compile"} < set(training)
        assert not folder.exists()
    # The initial weights are counted from a tenth of the text; the longest pilot reads more.
    whole = (text / "domain.txt").stat().st_size
    assert parts == pytest.approx([0.1 * whole, 0.1 * whole, whole * tokens_of(THIRD) / 40e6], abs=30)


def test_pilots_are_shorter_than_the_run_that_they_are_for():
    assert [pilot.steps_of(steps) for steps in (1, 2999, 3000, 11_999, 12_000, 10**7)] == [
        (FIRST,), (FIRST,), (FIRST, SECOND), (FIRST, SECOND), pilot.STEPS, pilot.STEPS
    ]  # fmt: skip


def test_a_pilot_gets_the_first_lines_of_a_text(tmp_path: pathlib.Path):
    source, target = tmp_path / "all.txt", tmp_path / "part.txt"
    source.write_text("one line.\n\nanother.\nand more.\n")
    pilot._copy_part(str(source), str(target), 0.5)
    assert target.read_text() == "one line.\n\nanother.\n"
    pilot._copy_part(str(source), str(target), 7.0)
    assert target.read_text() == source.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_plan_that_is_run_reaches_a_loss(
    corpus: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, dtype: str
):
    monkeypatch.undo()  # of the pilot
    monkeypatch.setattr(pilot, "STEPS", (5, 10, 20))
    monkeypatch.setattr(machine, "measure", lambda *_: Speed(1.0, 0.6, dtype))
    assert planning.run(options(corpus, tmp_path, run=True, minutes=1.0)) == 0
    made = json.loads((tmp_path / "plan" / "plan.json").read_text())
    first, second = made["pilots"]
    assert 0 < made["reached_loss"] < second["loss"] < first["loss"] < 10
    assert [each["tokens"] for each in (first, second)] == [tokens_of(5), tokens_of(10)]
    assert not (tmp_path / "plan" / "pilot").exists()
    assert ScalingLaw.read(FINAL).interval(made["expected_loss"])[0] == pytest.approx(
        made["expected_loss_low"], abs=1e-3
    )


@pytest.mark.parametrize(("hours", "model", "steps"), [(40.0, "BERT-Large", 1_000_000), (6.0, "BERT-Base", 490_000)])
def test_a_plan_for_devices_is_the_papers_recipe_with_hours_dollars_and_a_tpus_commands(
    corpus: str,
    tmp_path: pathlib.Path,
    hours: float,
    model: str,
    steps: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(pilot, "train", unwanted)  # nothing is measured here
    given = options(corpus, tmp_path, minutes=None, hours=hours, devices=8)
    assert planning.run(given) == 0
    made = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert made["model"] == model
    assert sum(each["steps"] for each in made["phases"]) == pytest.approx(steps, rel=0.01)
    assert made["expected_hours_low"] < made["expected_hours_high"] <= hours
    assert made["expected_dollars_high"] == pytest.approx(8 * 1.2 * made["expected_hours_high"], rel=0.01)
    assert f"{made['expected_hours_low']:.1f} to {made['expected_hours_high']:.1f} hours" in capsys.readouterr().out
    *records, copy, training = (shlex.split(line) for line in made["commands"])
    assert [line[1] for line in records] == ["make-records"] * 3
    assert copy[:2] == ["gcloud", "storage"]
    for line in (*records, training):
        load(line[1]).parse(line[2:])
    assert {"--distribution_strategy=tpu", "--num_tpu_cores=8", "--phase2_max_seq_length=512"} < set(training)
    # In one piece 32 sequences of 512 tokens of BERT-Large do not fit a chip.
    assert f"--gradient_accumulation_steps={2 if model == 'BERT-Large' else 1}" in training


def test_too_little_time_for_devices_is_said_by_their_steps(corpus: str, tmp_path: pathlib.Path):
    with pytest.raises(UserError, match=r"minutes are too short: a step of BERT-Base on 8 devices takes up to"):
        planning.plan(options(corpus, tmp_path, devices=8, minutes=1e-4))
    assert planning.plan(options(corpus, tmp_path, devices=8, minutes=0.4))["model"] == "BERT-Base"


def test_a_command_that_a_signal_ends_ends_the_plan(
    corpus: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    killed = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"]
    monkeypatch.setattr(planning, "process_of", lambda line: killed)
    assert planning.run(options(corpus, tmp_path, run=True)) == 128 + signal.SIGTERM


def test_the_rate_that_was_measured_and_a_price_leave_no_bounds(corpus: str, tmp_path: pathlib.Path):
    made = planning.plan(options(corpus, tmp_path, devices=64, minutes=6000.0, device_tflops=100.0, device_dollars=2.0))
    seconds = 900_000 * 0.976 / 100 + 100_000 * 4.126 / 100
    assert made["expected_hours_low"] == made["expected_hours_high"] == pytest.approx(seconds / 3600, abs=0.01)
    assert made["expected_dollars_low"] == pytest.approx(64 * 2 * seconds / 3600, rel=1e-3)


def test_the_hours_of_the_papers_runs_are_those_of_the_page(tmp_path: pathlib.Path, corpus: str):
    page = (ROOT / "docs" / "tpu.md").read_text(encoding="utf-8")
    for devices in COUNTED[:2]:
        for run in on_devices.runs(options(corpus, tmp_path, devices=devices), 30_522):
            (low, high), name = run.hours, run.name.removeprefix("BERT-")
            assert f"| {name} | {devices} | {low:.1f} - {high:.1f} |" in page


def test_the_counts_are_those_of_the_page():
    page = (ROOT / "docs" / "tpu.md").read_text(encoding="utf-8")
    counts = Device.read("v5e").steps
    assert len(counts) == 2 * 2 * len(COUNTED)
    for step in counts:
        rows = BATCH // step.devices // step.micro_batches
        sequences = str(rows) if step.micro_batches == 1 else f"{step.micro_batches} x {rows}"
        assert (
            f"| {step.model} | {step.devices} | {step.length} | {sequences} | {step.tflop:.3f} | {step.traffic_gb:.1f} "
            f"| {step.exchanged_mb:,.0f} | {step.memory_gib:.2f} |"
        ) in page
