"""Continued training on text of another domain, from the weights and files to adapt.json."""

import dataclasses
import json
import os
import pathlib
import shutil

import numpy as np
import pytest

import official_bert
from official_bert.adaptation import adapting, training, words
from official_bert.adaptation.training import Adaptation, Change
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.vocabulary import split_vocab
from official_bert.errors import UserError
from official_bert.keras_models.text_classifier import TextClassifier
from official_bert.optimization.choices import AdamOptions
from official_bert.runs import run_file
from official_bert.runs.training_log import read_log
from official_bert.utils import row_files
from tests.adaptation.adapted_models import make_options, write_text
from tests.make import assert_refused


def test_the_folder_is_a_model_with_losses_before_and_after(adapted: pathlib.Path, source: pathlib.Path):
    result = json.loads((adapted / "adapt.json").read_text())
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
    assert len(official_bert.fill_mask(loaded, "the [MASK] sat .", top_k=3)[0]) == 3
    assert TextClassifier.from_checkpoint(str(adapted), labels=["a", "b"]).predict(["the cat"]).shape == (1, 2)


def test_the_first_line_of_the_log_describes_the_weights(source: pathlib.Path, tmp_path: pathlib.Path):
    _, lines = words.read_checkpoint(make_options(source, "text.txt", tmp_path))
    assert lines[0].startswith(f"weights from {source} (Hugging Face checkpoint): ")


def test_the_card_has_losses_words_and_filled_masks(adapted: pathlib.Path):
    card = (adapted / "MODEL_CARD.md").read_text()
    for expected in (
        "Masked-LM losses",
        "per character after",
        "New words",
        "Masks filled in",
        r"\[MASK\]",
        "general text",
    ):
        assert expected in card


def test_report_says_whether_the_loss_fell_or_rose():
    change = Change(before=1.25, after=1.0)
    report = str(Adaptation(domain=Change(3.0, 3.1604), general=change, tokens_per_word=change, new_words=[]))
    domain, general, *_ = report.splitlines()
    assert domain.startswith("domain")
    assert domain.endswith("3.0000 before, 3.1604 after: 0.1604 worse (higher)")
    assert general.startswith("general")
    assert general.endswith("0.2500 better (lower)")


def test_report_explains_unusual_first_losses():
    result = Adaptation(Change(4.0, 3.0), Change(5.0, 3.0), Change(1.0, 1.0), [])
    assert training.explain_first_losses(result, vocab_size=1000, has_masked_lm=True) == []
    no_head, above = training.explain_first_losses(result, vocab_size=100, has_masked_lm=False)
    assert "no masked-LM head" in no_head
    assert "general loss" in above, "ln(100) is 4.6"
    result.notes.append(no_head)
    assert str(result).endswith(f"note: {no_head}")


def test_heldout_texts_stay_and_other_work_files_are_removed(adapted: pathlib.Path):
    kept = {str(path.relative_to(adapted / "adaptation")) for path in (adapted / "adaptation").rglob("*.*")}
    assert kept == {
        "words.json", "original_losses.json", "texts/heldout.txt", "texts/general_heldout.txt", "texts/texts.json",
        "texts/contents.json", "texts/options.json",
    }  # fmt: skip


def test_repeated_call_returns_the_stored_result(adapted: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    options = json.loads((adapted / "adaptation" / "texts" / "options.json").read_text())
    arguments = {**options, "output_dir": str(adapted), "input_file": options["input_file"][0]}
    state = {path: path.stat().st_mtime_ns for path in adapted.rglob("*.*")}
    result = official_bert.adapt(**arguments)
    assert "already complete" in capsys.readouterr().out
    assert dataclasses.asdict(result) == json.loads((adapted / "adapt.json").read_text())
    assert {path: path.stat().st_mtime_ns for path in adapted.rglob("*.*")} == state
    with pytest.raises(UserError, match="--new_words was 2 and is 3"):
        official_bert.adapt(**{**arguments, "new_words": 3})
    for flag in ("input_file", "general_file"):
        text = pathlib.Path(options[flag][0])
        before = text.read_bytes()
        text.write_bytes(before + b"One more line.\n")
        try:
            with pytest.raises(UserError, match=f"--{flag} has changed since: .* was .* bytes, sha256 .*, and is"):
                official_bert.adapt(**arguments)
        finally:
            text.write_bytes(before)


def test_changed_exclude_texts_are_rejected(source: pathlib.Path, tmp_path: pathlib.Path):
    text, left_out = write_text(tmp_path / "text.txt"), tmp_path / "dev.txt"
    left_out.write_text("the cat sat on the mat, and nobody knew how long it would sit there.\n")
    options = make_options(source, text, tmp_path / "model", exclude_texts=[str(left_out)])
    held = tmp_path / "model" / "adaptation" / "texts"
    held.mkdir(parents=True)
    (held / "options.json").write_text(json.dumps(run_file.locked_values(options)))
    contents = {
        "input_file": row_files.fingerprint([str(text)]),
        "exclude_texts": row_files.fingerprint([str(left_out)]),
    }
    (held / "contents.json").write_text(json.dumps(contents))
    work = str(tmp_path / "model" / "adaptation")
    adapting._check_folder(options, work)
    left_out.write_text("the dog ran in the sun, and nobody knew how long it would run there.\n")
    assert_refused("--exclude_texts has changed since: .*dev.txt was .* bytes", adapting._check_folder, options, work)


@pytest.mark.slow
def test_moved_folder_can_be_resumed(
    source: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    text = write_text(tmp_path / "text.txt")
    monkeypatch.setattr(training, "write_result", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        adapting.run(make_options(source, text, tmp_path / "here"))
    monkeypatch.undo()
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert adapting.run(make_options(source, text, tmp_path / "there")) == 0
    assert "nothing to train: all 4 steps are done" in capsys.readouterr().out


@pytest.mark.slow
def test_text_of_single_sentences_is_learned_without_pairs(
    source: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    text = write_text(tmp_path / "text.txt", documents=100, sentences=1)
    (tmp_path / "words.txt").write_text("sunny\nrunning\n<user>\n")
    options = make_options(
        source, text, tmp_path / "model", num_train_steps=1, new_words_file=str(tmp_path / "words.txt")
    )
    assert adapting.run(options) == 0
    output = capsys.readouterr().out
    assert "--objective=mlm" in output
    assert "it has no pooler, no next-sentence head: new weights are used" in output
    assert "3 words added, 1 of them in place of unused pieces" in output
    assert open_model(str(tmp_path / "model")).tokenizer.tokenize("the <user> sat") == ["the", "<user>", "sat"]
    assert json.loads((tmp_path / "model" / "adapt.json").read_text())["general"] is None
    assert json.loads((tmp_path / "model" / "run.json").read_text())["flags"]["next_sentence_prediction"] is False
    (tmp_path / "words.txt").write_text("sunny\nwalking\n")
    assert_refused(
        "--new_words_file has changed since: .*words.txt was 21 bytes, .* and is 14 bytes", adapting.run, options
    )
    (tmp_path / "words.txt").unlink()
    assert adapting.run(options) == 0, "what was read of it is used"


def test_new_words_start_as_the_mean_of_their_pieces(source: pathlib.Path):
    checkpoint, _ = words.read_checkpoint(make_options(source, "text.txt", pathlib.Path("none")))
    grown = words.add_words(checkpoint, ["sunny", "catdog"])
    numbers = [split_vocab(checkpoint.vocab).index(piece) for piece in ("sun", "##n", "##y")]
    for name in ("word_embeddings/embeddings", "masked_lm_output/bias"):
        expected = checkpoint.weights[name][numbers].mean(axis=0)
        np.testing.assert_allclose(grown.weights[name][77], expected, rtol=1e-5)
    assert len(grown.weights["masked_lm_output/bias"]) == 79


@pytest.mark.parametrize(("changes", "message"), [
    ({"init": "none"}, "there is no file or folder none"),
    ({"input_file": ["none-*"]}, "--input_file: no file matches 'none-\\*'"),
    ({"general_file": ["text.txt"]}, "--general_file and --input_file are the same file .*text.txt"),
    ({"general_file": ["copy.txt"]}, "40 of the 40 documents of --general_file"),
    ({"max_seq_length": 64}, "--max_seq_length is 64, but the model of --init supports at most 32 tokens"),
    ({"new_words_file": "new:two words"}, "'two words' never occurs in tokenized text"),
    ({"new_words_file": "new:cat"}, "the new token 'cat' is already in the vocabulary"),
    ({"new_words_file": "new:Sunny"}, "'Sunny' never occurs in tokenized text"),
    ({"new_words_file": "new:"}, "new: contains no word"),
    ({"do_lower_case": False}, "--nodo_lower_case contradicts .*official-bert convert --nodo_lower_case"),
    ({"word_boundaries": "none.txt", "do_whole_word_mask": True}, "--word_boundaries is 'none.txt', which is neither"),
])  # fmt: skip
def test_wrong_options_are_rejected_in_one_line_and_leave_no_files(
    changes: dict[str, object], message: str, source: pathlib.Path, tmp_path: pathlib.Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copy(write_text(tmp_path / "text.txt"), "copy.txt")
    name = str(changes.get("new_words_file"))
    pathlib.Path(name).write_text(f"{name.removeprefix('new:')}\n")
    with pytest.raises(UserError, match=message) as caught:
        adapting.run(make_options(source, "text.txt", tmp_path / "model", **changes))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "model").exists()


def test_a_folder_with_other_files_is_refused(source: pathlib.Path, tmp_path: pathlib.Path):
    text = write_text(tmp_path / "text.txt")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "ckpt-1.index").write_text("")
    with pytest.raises(UserError, match="model contains other files .ckpt-1.index.; pass a new or empty --output_dir"):
        adapting.run(make_options(source, text, tmp_path / "model"))
    assert os.listdir(tmp_path / "model") == ["ckpt-1.index"]


def test_the_optimizer_s_flags_are_passed_to_pretraining():
    assert {field.name for field in dataclasses.fields(AdamOptions)} <= training._SHARED_OPTIONS
