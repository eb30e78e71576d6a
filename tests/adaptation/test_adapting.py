"""Continued training on text of another domain, from the weights and files to adapt.json."""

import dataclasses
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time
from unittest import mock

import numpy as np
import pytest

import official_bert
from official_bert.adaptation import adapting, records, training, words
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.vocabulary import split_vocab
from official_bert.optimization.choices import AdamOptions
from official_bert.runs.training_log import read_log
from tests import make
from tests.adaptation.conftest import LENGTH, PREDICTIONS, make_options, write_text
from tests.make import ROOT, assert_mentions, assert_rejected, refusal, run_python, tiny_config


def read_json(path: pathlib.Path):
    return json.loads(path.read_text())


def test_the_folder_is_a_model_with_losses_before_and_after_and_the_held_out_texts(adapted, source):
    kept = "heldout.txt general_heldout.txt texts.json contents.json options.json words.json original_losses.json"
    assert {path.name for path in (adapted / "adaptation").rglob("*.*")} == {*kept.split()}
    result = read_json(adapted / "adapt.json")
    assert set(result) == {"domain", "general", "tokens_per_word", "new_words", "notes"}
    assert not [note for note in result["notes"] if "no masked-LM head" in note]
    for name, kind in (("domain", "eval"), ("general", "general")):
        losses = [line["masked_lm_loss"] for line in read_log(str(adapted), kind)]
        assert len(losses) == 3, "before the first step, during, at the end"
        assert result[name] == {"before": losses[0], "after": losses[-1]}
    assert result["domain"]["after"] < result["domain"]["before"]
    assert len(result["new_words"]) == 2
    assert result["tokens_per_word"]["after"] < result["tokens_per_word"]["before"]
    before, after = open_model(str(source)), open_model(str(adapted))
    assert split_vocab(after.vocab)[77:] == result["new_words"], "the unused piece's place first"
    assert after.config.vocab_size == len(after.weights["masked_lm_output/bias"]) == before.config.vocab_size + 1
    loaded = official_bert.load_pretraining_model(str(adapted))
    word = result["new_words"][1]
    assert loaded.tokenizer.tokenize(word) == [word]
    classifier = official_bert.TextClassifier.from_checkpoint(str(adapted), labels=["a", "b"])
    assert classifier.predict(["the cat"]).shape == (1, 2)
    limits = {"max_eval_steps": 1600 // 8, "eval_batch_size": 8, "keep_checkpoint_max": 2}
    assert read_json(adapted / "run.json")["flags"].items() >= limits.items()
    card = (adapted / "MODEL_CARD.md").read_text()
    titles = "Masked-LM losses,per character after,New words,Masks filled in,\\[MASK\\],general text"
    assert not [title for title in titles.split(",") if title not in card]
    files = ("words.json", "texts/texts.json", "original_losses.json")
    facts, texts, original_losses = (read_json(adapted / "adaptation" / name) for name in files)
    for name in ("domain", "general"):
        for when, loss in (("before", original_losses[name]), ("after", result[name]["after"])):
            assert f" {loss * facts[f'{name}_{when}'] / texts['heldout_characters'][name]:.4f} " in card
    assert "| {before:.3f} | {after:.3f} |".format(**result["tokens_per_word"]) in card
    sentence, _, _, best = re.search(r"^\| (.*\\\[MASK\\\].*) \|$", card, re.MULTILINE)[1].split(" | ")
    (candidates,) = official_bert.fill_mask(loaded, sentence.replace("\\", ""), top_k=3)
    assert best.replace("\\", "") == ", ".join(f"{each.token} {100 * each.probability:.0f} %" for each in candidates)


def test_repeated_call_returns_the_stored_result(adapted, capsys):
    options = read_json(adapted / "adaptation" / "texts" / "options.json")
    arguments = {**options, "output_dir": str(adapted), "input_file": options["input_file"][0]}
    state = {path: path.stat().st_mtime_ns for path in adapted.rglob("*.*")}
    result = official_bert.adapt(**arguments)
    assert "already complete" in capsys.readouterr().out
    assert dataclasses.asdict(result) == read_json(adapted / "adapt.json")
    assert {path: path.stat().st_mtime_ns for path in adapted.rglob("*.*")} == state
    assert_rejected((adapted, "--new_words", 2, 3), official_bert.adapt, **{**arguments, "new_words": 3})
    for flag in ("input_file", "general_file", "exclude_texts"):
        text = pathlib.Path(options[flag][0])
        before = text.read_bytes()
        text.write_bytes(before + b"One more line.\n")
        sizes = (f"{len(before):,}", f"{len(before) + 15:,}")
        assert_rejected((f"--{flag}", text, "sha256", *sizes), official_bert.adapt, **arguments)
        text.write_bytes(before)


def test_report_states_whether_the_loss_fell_and_explains_unusual_initial_losses(tmp_path):
    domain, general, pieces = (training.Change(*losses) for losses in ((3.0, 3.1604), (5.0, 4.75), (1.5, 1.25)))
    result = training.Adaptation(domain, general, pieces, [])
    assert re.search(r"domain .* 3.0000 .* 3.1604 .* 0.1604 worse .*\ngeneral .* 0.2500 better", str(result))
    assert "1.500 per word before, 1.250 after" in str(result)
    assert training.explain_first_losses(result, vocab_size=1000, has_masked_lm=True) == []
    no_head, above = training.explain_first_losses(result, vocab_size=100, has_masked_lm=False)
    assert "no masked-LM head" in no_head
    assert "general loss" in above, "ln(100) is 4.6"
    result.notes.append(no_head)
    assert str(result).endswith(f"note: {no_head}")
    texts = records.Texts(100, {"domain": 10, "general": 10}, 0.0, pairs=True)
    counts = dict.fromkeys(("domain_before", "domain_after", "general_before", "general_after"), 5)
    assert training._make_tables(result, texts, counts, {})["Notes on the losses"][1:] == [[no_head]]
    equal = dataclasses.replace(result, domain=training.Change(3.0, 3.0), general=None)
    assert not re.search("better|worse", str(equal))
    (tmp_path / "adapt.json").write_text(json.dumps(dataclasses.asdict(equal)))
    assert training.Adaptation.read(str(tmp_path)) == equal


def test_sentences_of_the_model_card_fit_into_the_model(adapted, tmp_path):
    loaded, text = official_bert.load_pretraining_model(str(adapted)), tmp_path / "text.txt"
    long_word = "sun" + 30 * "n"  # 31 of the model's 32 positions
    sentences = [f"the cat sat on {long_word} .", "the dog ran on [ the mat .", "the dog ran on the mat ."]
    sentences += [" ".join(["cat"] * count) for count in (5, 6, 25, 26)]
    text.write_text("\n".join(sentences))
    samples = [training._mask_words(str(text), loaded, seed) for seed in range(20)]
    assert [sorted(len(sample.split()) for sample, _ in each) for each in samples] == [[6, 7, 25]] * 20
    assert {word for each in samples for _, word in each} == {"the", "dog", "ran", "on", "mat", "cat"}
    text.write_text("the dog ran on the mat .\n" * 9)
    assert len(training._mask_words(str(text), loaded, seed=0)) == 8


@pytest.mark.slow
def test_moved_folder_can_be_resumed(source, tmp_path, monkeypatch, capsys):
    text = write_text(tmp_path / "text.txt")
    with monkeypatch.context() as patch:
        patch.setattr(training, "write_result", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            adapting.run(make_options(source, text, tmp_path / "here"))
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert adapting.run(make_options(source, text, tmp_path / "there")) == 0
    assert "nothing to train: all 4 steps are done" in capsys.readouterr().out


@pytest.mark.slow
def test_text_of_single_sentence_documents_is_trained_without_sentence_pairs(source, tmp_path, capsys):
    text, folder, new_words = write_text(tmp_path / "text.txt", 100, 1), tmp_path / "model", tmp_path / "words.txt"
    new_words.write_text("sunny\nrunning\n<user>\n")
    options = make_options(source, text, folder, num_train_steps=1, new_words_file=str(new_words))
    assert adapting.run(options) == 0
    output, new_heads = capsys.readouterr().out, "it has no pooler, no next-sentence head: new weights are used"
    for part in ("--objective=mlm", new_heads, "3 words added, 1 of them in place of unused pieces"):
        assert part in output
    assert open_model(str(folder)).tokenizer.tokenize("the <user> sat") == ["the", "<user>", "sat"]
    assert read_json(folder / "adapt.json")["general"] is None
    assert read_json(folder / "run.json")["flags"]["next_sentence_prediction"] is False
    new_words.write_text("sunny\nwalking\n")
    assert_rejected(("--new_words_file", new_words, 21, 14), adapting.run, options)
    new_words.unlink()
    assert adapting.run(options) == 0, "what was read of it is used"


def test_the_checkpoint_and_its_missing_parts_are_named(source):
    _, lines = words.read_checkpoint(make_options(source, "text.txt", pathlib.Path("none")))
    assert lines[0].startswith(f"weights from {source} (Hugging Face checkpoint): ")
    assert_mentions(lines[-1], "pooler", "next-sentence head")


WRONG_OPTIONS = [
    ({"init": "none"}, ("none", "models")),
    ({"input_file": ["none-*"]}, ("--input_file", "'none-*'")),
    ({"general_file": ["text.txt"]}, ("--general_file", "--input_file", "text.txt")),
    ({"general_file": ["copy.txt"]}, ("40 of", "the 80", "--general_file")),
    ({"max_seq_length": 64}, ("--max_seq_length", 64, "--init", 32)),
    ({"new_words_file": "new:Sunny"}, ("new:Sunny", "'Sunny'", "['sunny']")),
    ({"new_words_file": "new:"}, ("new:", "words")),
    ({"do_lower_case": False}, ("convert", "--nodo_lower_case")),
    ({"word_boundaries": "no.txt", "do_whole_word_mask": True}, ("--word_boundaries", "'no.txt'", "jieba")),
]


@pytest.mark.parametrize(("changes", "names"), WRONG_OPTIONS)
def test_wrong_options_are_rejected_in_one_line_and_leave_no_files(changes, names, source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = pathlib.Path(write_text(tmp_path / "other.txt", seed=1)).read_text()
    pathlib.Path("copy.txt").write_text(pathlib.Path(write_text(tmp_path / "text.txt")).read_text() + "\n" + other)
    name = str(changes.get("new_words_file"))
    pathlib.Path(name).write_text(f"{name.removeprefix('new:')}\n")
    message = refusal(lambda: adapting.run(make_options(source, "text.txt", tmp_path / "model", **changes)))
    assert_mentions(message, *names)
    assert "\n" not in message
    assert not (tmp_path / "model").exists()


def test_arguments_of_wrong_type_are_rejected(tmp_path):
    for name, value, *names in (
        ("num_steps", 3, "num_train_steps", "new_words"),
        ("num_train_steps", "3", "number"),
        ("new_words", True, "whole"),
        ("objective", None, "auto", "pairs", "mlm"),
        ("do_lower_case", 1, "true", "false"),
        ("general_file", [5], 5, "text"),
    ):
        assert_rejected((name, *names), official_bert.adapt, "model", "text.txt", tmp_path / "out", **{name: value})
    assert not (tmp_path / "out").exists()


def test_arguments_become_flags_and_a_stopped_training_is_an_interrupt(monkeypatch):
    run = mock.Mock(return_value=130)
    monkeypatch.setattr(adapting, "run", run)
    with pytest.raises(KeyboardInterrupt):
        official_bert.adapt("model", "text.txt", "folder", general_file=("a", pathlib.Path("b")), exclude_texts=None)
    (options,) = run.call_args.args
    assert [options.input_file, options.general_file, options.exclude_texts] == [["text.txt"], ["a", "b"], []]


def test_a_folder_with_other_files_is_refused(source, tmp_path):
    other = make.write_text(tmp_path / "model" / "ckpt-1.index", "")
    options = make_options(source, write_text(tmp_path / "text.txt"), tmp_path / "model")
    assert_rejected((tmp_path / "model", "ckpt-1.index", "--output_dir"), adapting.run, options)
    assert list(map(str, (tmp_path / "model").iterdir())) == [other]


def test_defaults_depend_on_the_model_and_the_number_of_steps():
    config, steps = tiny_config(hidden_size=384), {"num_train_steps": 200, "learning_rate": None, "eval_steps": None}
    options = make_options(pathlib.Path("model"), "text.txt", pathlib.Path("folder"), **steps)
    for changes, *expected in (
        ({}, 1e-4, 20, 20, 20),
        ({"num_train_steps": 9}, 1e-4, 1, 1, 1),
        ({"learning_rate": 1e-3, "num_warmup_steps": 0, "eval_steps": 7}, 1e-3, 0, 7, 7),
        ({"eval_steps": 7, "save_checkpoints_steps": 3}, 1e-4, 20, 7, 3),
    ):
        new = dataclasses.replace(options, **changes).resolve_defaults(config)
        found = [new.learning_rate, new.num_warmup_steps, new.eval_steps, new.save_checkpoints_steps]
        assert found == pytest.approx(expected)
    files = {"input_file": ["text.txt"], "new_words_file": ["words.txt"]}
    assert dataclasses.replace(options, new_words_file="words.txt").text_files == files


def test_at_least_one_batch_is_evaluated(monkeypatch):
    monkeypatch.setattr(records, "make_records", lambda *_: {"input_file": ["x"], "eval_input_file": ["y"]})
    monkeypatch.setattr(records, "read_texts", lambda _: records.Texts(1, {"domain": 1}, 0.0, pairs=True))
    options = make_options(pathlib.Path("model"), "text.txt", pathlib.Path("folder"), train_batch_size=2000)
    settings = {"output_dir": "folder", "do_train": True}
    prepared = training._prepare_pretraining(options.resolve_defaults(tiny_config()), "work", "initial", 1, settings)
    assert prepared.max_eval_steps == 1


def test_a_stopped_training_has_no_result_and_new_words_alone_need_the_original_losses(source, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "write_original_losses", lambda *_: 1 / 0)
    monkeypatch.setattr(training, "train", lambda *_: 143)
    assert adapting.run(make_options(source, write_text(tmp_path / "text.txt"), tmp_path / "model")) == 143


def test_optimizer_flags_are_passed_to_pretraining():
    assert {field.name for field in dataclasses.fields(AdamOptions)} <= training._SHARED_OPTIONS


@pytest.mark.slow
def test_kill_in_each_stage_does_not_change_the_result(source, tmp_path):
    text, general = write_text(tmp_path / "text.txt", documents=200), write_text(tmp_path / "general.txt", seed=1)
    flags = (
        f"--init={source} --input_file={text} --general_file={general} --new_words=2 --max_seq_length={LENGTH} "
        f"--max_predictions_per_seq={PREDICTIONS} --train_batch_size=8 --learning_rate=1e-2 --num_train_steps=40 "
        "--eval_steps=10 --log_steps=10 --save_checkpoints_steps=5"
    )
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    command = ["-m", "official_bert_cli", "adapt", *flags.split()]
    stages = "texts/options.json original/bert_config.json initial/bert_config.json original_losses.json"
    stages = [killed / "adaptation" / name for name in (*stages.split(), "records/initial/train.manifest.json")]
    for stage in (*stages, killed / "ckpt-10.index"):
        process = subprocess.Popen([sys.executable, *command, f"--output_dir={killed}"], cwd=ROOT)
        while process.poll() is None and not stage.exists():
            time.sleep(0.01)
        process.kill()
        process.wait()
        assert (stage.exists(), (killed / "adapt.json").exists()) == (True, False), stage
    for folder in (killed, whole):
        run_python(*command, f"--output_dir={folder}", check=True)
    assert (killed / "adapt.json").read_bytes() == (whole / "adapt.json").read_bytes()
    weights = open_model(str(killed)).weights
    for name, value in open_model(str(whole)).weights.items():
        np.testing.assert_array_equal(weights[name], value, err_msg=name)
    assert [line["step"] for line in read_log(str(killed), "eval")] == [0, 10, 20, 30, 40]
