"""Splitting text into held-out and training documents, mixing in general text, new words, and making records."""

import dataclasses
import json
import pathlib
import re
import shutil

import pytest
import tensorflow as tf

from official_bert.adaptation import records, words
from official_bert.checkpoints import resize
from official_bert.checkpoints.checkpoint import LoadOverrides
from official_bert.checkpoints.formats import own
from official_bert.checkpoints.loading import open_model
from official_bert.tokenization.casing import UNCASED
from tests import make
from tests.adaptation.conftest import make_options, write_text
from tests.make import VOCAB, assert_mentions, assert_rejected


def prepare(folder, text, *names, **changes):
    """Prepares texts in the folder `texts`. Returns what was found, and the documents of these files."""
    (folder / "texts").mkdir()
    options = make_options(folder / "initial", text, folder / "model", **changes)
    found = records.prepare_texts(options, str(folder / "texts"))
    return found, *(list_documents(folder / "texts" / name) for name in names)


def list_documents(path: str | pathlib.Path) -> set[str]:
    return {document.strip() for document in pathlib.Path(path).read_text().split("\n\n") if document.strip()}


@pytest.mark.parametrize(("share", "limit"), [(0.1, 2_000_000), (0.9, 3000)])
def test_whole_documents_are_held_out_and_duplicates_stay_on_one_side(share, limit, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "_MAX_HELDOUT_CHARACTERS", limit)
    text = pathlib.Path(write_text(tmp_path / "text.txt", documents=100))
    text.write_text("\n".join([text.read_text()] * 3))
    facts, held, kept = prepare(tmp_path, str(text), records.HELDOUT, records.DOMAIN, heldout_share=share)
    assert not held & kept
    assert held | kept == list_documents(text)
    total = facts.characters + facts.heldout_characters["domain"]
    assert 0.05 * total < facts.heldout_characters["domain"] <= 0.1 * total
    assert facts == records.read_texts(str(tmp_path))
    assert facts.pairs


def test_end_of_a_single_long_document_is_held_out(tmp_path, capsys):
    lines = [f"Предложение номер {number} романа ." for number in range(100)]  # Twice as many bytes as characters.
    for copies in (1, 2):
        novel = make.write_text(tmp_path / "novel.txt", "\n\n".join(["\n".join(lines)] * copies))
        found, held, kept = prepare(tmp_path, novel, records.HELDOUT, records.DOMAIN, heldout_share=0.1)
        assert "longer than 10 % of the text" in capsys.readouterr().out
        assert (held, kept) == ({"\n".join(lines[-10:])}, {"\n".join(lines[:-10])})
        assert found.characters == copies * sum(map(len, lines[:-10]))
        shutil.rmtree(tmp_path / "texts")


# Copies of one sentence, and the last of two sentences.
TEXTS = [(2 * "Short .\n\nA longer document .\n\n", 0.1), ("A longer document .\nShort .\n", 0.5)]


@pytest.mark.parametrize(("text", "share"), TEXTS)
def test_some_text_is_held_out_and_some_is_kept(text, share, tmp_path):
    path = make.write_text(tmp_path / "text.txt", text)
    _, held, kept = prepare(tmp_path, path, records.HELDOUT, records.DOMAIN, heldout_share=share)
    assert (held, kept) == ({"Short ."}, {"A longer document ."})


@pytest.mark.parametrize(("single", "pairs"), [(10, True), (11, False)])
def test_pairs_are_made_if_documents_of_several_sentences_are_half_of_the_text(single, pairs, tmp_path):
    text = make.write_text(tmp_path / "text.txt", f"{'a' * 5}\n{'b' * 5}\n\n{'c' * single}\n")
    assert prepare(tmp_path, text, heldout_share=0.5)[0].pairs == pairs


def test_a_text_of_one_sentence_is_rejected(tmp_path):
    text = make.write_text(tmp_path / "text.txt", "Only this .\n")
    assert_rejected(("--input_file", 1), prepare, tmp_path, text)


def test_general_text_is_mixed_in_by_its_share_without_documents_of_the_domain(tmp_path, capsys):
    text = write_text(tmp_path / "text.txt", documents=200)
    general = pathlib.Path(write_text(tmp_path / "general.txt", documents=200, seed=1))
    shared = min(list_documents(text))
    general.write_text(f"{general.read_text()}\n{shared}\n")
    changes = {"general_file": [str(general)], "general_share": 0.2}
    facts, held, mixed = prepare(tmp_path, text, records.GENERAL_HELDOUT, records.GENERAL, **changes)
    assert 0.2 <= facts.general_share < 0.21
    assert held
    assert not held & (mixed | {shared})
    assert shared not in mixed
    output = capsys.readouterr().out
    assert "also in --input_file: 1 document" in output
    assert "too little text" not in output


def test_the_text_is_used_as_often_as_training_needs_it():
    sizes = {"num_train_steps": 10, "train_batch_size": 8, "max_seq_length": 13}  # 800 tokens, without [CLS] and [SEP]
    options = make_options(pathlib.Path("model"), "text.txt", pathlib.Path("folder"), **sizes)
    cases = [(800, 0), (799, 0), (400, 0.5), (200, 0.5), (79, 0), (1, 0), (0, 0)]
    assert [records.count_passes(options, *case) for case in cases] == [1, 2, 1, 2, 10, 10, 10]
    assert records.count_passes(dataclasses.replace(options, dupe_factor=20), 400, 0) == 20


def test_general_text_that_is_not_mixed_in_is_held_out_completely(tmp_path):
    text, general = (write_text(tmp_path / f"{name}.txt", seed=name) for name in (0, 1))
    facts, held = prepare(tmp_path, text, records.GENERAL_HELDOUT, general_file=[general])
    assert held == list_documents(general)
    assert facts.general_share == 0
    assert not (tmp_path / "texts" / records.GENERAL).exists()


def test_documents_that_hold_a_text_of_an_evaluation_file_are_left_out(tmp_path, capsys):
    text = write_text(tmp_path / "text.txt", documents=30)
    lines = [f"number {number} is a sentence of other text .\nthe end .\n\n" for number in range(20)]
    general = make.write_text(tmp_path / "general.txt", "".join(lines))
    domain = min(list_documents(text))
    excluded = f"number 7 is a sentence of other text .\n{' '.join(domain.split())}\n"
    changes = {"exclude_texts": [make.write_text(tmp_path / "dev.txt", excluded)], "heldout_share": 0.2}
    names = (records.HELDOUT, records.DOMAIN, records.GENERAL, records.GENERAL_HELDOUT)
    left = set.union(*prepare(tmp_path, text, *names, **changes, general_file=[general], general_share=0.5)[1:])
    assert list_documents(text) - left == {domain}
    assert not any("number 7 " in document for document in left)
    output = capsys.readouterr().out
    assert output.count("left out because of --exclude_texts: 1 document") == 2
    assert "too little text for --general_share=0.5" in output


def test_records_have_the_options_and_the_accents_of_the_model(source, tmp_path):
    text, general = (write_text(tmp_path / f"{name}.txt", seed=name) for name in (0, 1))
    prepare(tmp_path, text, general_file=[general], general_share=0.2, objective="mlm")
    settings = {"do_whole_word_mask": True, "masked_lm_prob": 0.3, "random_seed": 7}
    boundaries = make.write_text(tmp_path / "words.txt", "cat-dog\n")
    options = make_options(source, text, tmp_path, word_boundaries=boundaries, **settings)
    own.write(open_model(str(source), LoadOverrides(strip_accents=False, replace=True)), str(tmp_path / "initial"))
    made = records.make_records(options, str(tmp_path), "initial", 2)
    settings |= {"sentence_objective": "none", "strip_accents": False}
    settings["input_format"] = "sentences"  # A sentence may look like a row of another format.
    for option, passes, *names in (
        ("input_file", 2, "domain.txt", "general.txt"),
        ("eval_input_file", 3, "heldout.txt"),
        ("general_eval_file", 3, "general_heldout.txt"),
    ):
        (path,) = made[option]
        manifest = json.loads(pathlib.Path(path.replace(".tfrecord", ".manifest.json")).read_text())["source"]
        assert manifest["flags"]["word_boundaries"].startswith("sha256: ")
        assert manifest["flags"].items() >= {**settings, "dupe_factor": passes}.items()
        assert [each["file"] for each in manifest["inputs"]] == names


def test_markers_among_the_new_words_are_tokens_of_the_records(source, tmp_path):
    text = pathlib.Path(write_text(tmp_path / "text.txt"))
    text.write_text(text.read_text().replace("cat", "<user>"))
    grown, _ = resize.add_tokens(open_model(str(source)), ["<user>"], "unused_first")
    own.write(grown, str(tmp_path / "initial"))
    prepare(tmp_path, str(text))
    made = records.make_records(make_options(source, str(text), tmp_path), str(tmp_path), "initial", 1)
    examples = [tf.train.Example.FromString(record.numpy()) for record in tf.data.TFRecordDataset(made["input_file"])]
    ids = {index for each in examples for index in each.features.feature["input_ids"].int64_list.value}
    assert grown.tokenizer.vocab["<user>"] in ids


# Counts of words, the tokens that the proposed words save, and the pieces of the first one.
PROPOSALS = [
    ({"catdog": 10, "sunny": 5, "cat": 100, "rare": 4, "x" * 201: 99}, "catdog 30 sunny 10", "cat ##d ##o ##g"),
    # After "unaffable" is added, "unaffables" saves only one token.
    ({"unaffable": 50, "unaffables": 20, "playing": 25}, "unaffable 100 playing 25 unaffables 20", "un ##aff ##able"),
    ({"日": 5}, "日 5", "[UNK]"),
]


@pytest.mark.parametrize(("counts", "saved", "pieces"), PROPOSALS)
def test_words_that_save_most_tokens_come_first(counts, saved, pieces):
    proposals = words.propose_words(VOCAB, counts, 10)
    assert " ".join(f"{each.word} {each.saved}" for each in proposals) == saved
    assert proposals[0].pieces == pieces.split()
    assert words.propose_words(VOCAB, counts, 1) == proposals[:1]


def test_the_first_hundreds_of_proposed_words_have_their_share_of_the_tokens():
    proposals = [words.Proposal(f"w{number}", 9, ["w"], 2 if number < 100 else 1) for number in range(300)]
    share = "share of the text's tokens saved: the first 100 20.0 %, the first 300 40.0 %"
    lines = words.describe_proposals(proposals, 1000).splitlines()
    assert (len(lines), lines[-1]) == (1 + 20 + 1, share)


def test_description_has_pieces_per_word_and_unknown_characters():
    described = words.describe_words(VOCAB, {"cat": 6, "running": 2, "ca日": 2})
    assert "1.800 tokens per word; 20.00 % of the words are split into three or more, 20.000 % are [UNK]" in described
    assert described.endswith("characters that make words [UNK], with the number of words: '日' 2")
    unknown = words.describe_words(VOCAB, {chr(0x4E00 + count): count for count in range(1, 13)})
    assert re.findall(r"' (\d+)", unknown) == list(map(str, range(12, 2, -1)))


def test_words_are_counted_as_the_tokenizer_separates_them(tmp_path):
    (tmp_path / "text.txt").write_text("The cat-dog sat.\nthe cat\n\nThe sun\n")
    counts = words.count_words(str(tmp_path / "text.txt"), UNCASED).counts
    assert counts == {"the": 3, "cat": 2, "-": 1, "dog": 1, "sat": 1, ".": 1, "sun": 1}


def test_tokens_are_estimated_for_the_whole_text_if_only_a_sample_is_counted(source, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(words, "_MAX_WORDS", 8)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "domain.txt").write_text("cat\n" * 400 + "\n".join("abcdefgh"))
    options = make_options(source, "text.txt", tmp_path / "model", new_words=3)
    words.make_initial_model(options, words.read_checkpoint(options)[0], [], str(tmp_path))
    assert "--new_words is 3, but only 0 words can be added" in capsys.readouterr().out
    facts = json.loads((tmp_path / "words.json").read_text())
    assert (facts["tokens"], facts["has_masked_lm"]) == (pytest.approx(408, rel=0.05), True)


def test_a_text_without_words_is_rejected_and_replaced_pieces_and_heads_are_reported(source, tmp_path, capsys):
    options = make_options(source, "text.txt", tmp_path / "model", new_words_file="words.txt")
    checkpoint = words.read_checkpoint(options)[0]
    weights = {name: value for name, value in checkpoint.weights.items() if not name.startswith("masked_lm")}
    arguments = (options, dataclasses.replace(checkpoint, weights=weights), ["sunny", "running"], str(tmp_path))
    text = pathlib.Path(make.write_text(tmp_path / "texts" / "domain.txt", ""))
    assert_rejected("text", words.make_initial_model, *arguments)
    text.write_text("cat\n")
    words.make_initial_model(*arguments)
    assert_mentions(capsys.readouterr().out, "2 words added, 1 of them")
    assert not json.loads((tmp_path / "words.json").read_text())["has_masked_lm"]


def test_labels_of_a_fine_tuned_model_are_left_out(source, tmp_path, monkeypatch):
    tuned = dataclasses.replace(open_model(str(source)), labels=("a", "b"), kind="classification")
    monkeypatch.setattr(words, "open_model", lambda *_: tuned)
    checkpoint, _ = words.read_checkpoint(make_options(source, "text.txt", tmp_path))
    assert (checkpoint.labels, checkpoint.kind) == (None, None)
