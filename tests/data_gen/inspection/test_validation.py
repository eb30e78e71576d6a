"""The rules that every record must follow."""

import pathlib

import pytest

from data_gen.inspection.overview import inspect
from data_gen.options import InspectionOptions
from official_bert.modeling.config import BertConfig
from official_bert.pretraining.options import PretrainingOptions
from official_bert.pretraining.record_files import RecordFiles
from tests.data_gen import samples
from tests.data_gen.inspection import record_samples
from tests.data_gen.inspection.record_samples import CLS, MASK, SEP, THE, check, good, problems, write
from tests.make import WORDS, assert_mentions, write_text, write_vocab


@pytest.mark.parametrize(("name", "place", "value", "names"), [
    ("input_mask", 8, 1, ("input_mask", 0, "position 7")),
    ("input_ids", 8, 5, ("input_ids", 5, "position 8", "padding")),
    ("segment_ids", 9, 1, ("segment_ids", 1, "position 9", "padding")),
    ("segment_ids", 1, 1, ("segment_ids", 1, "position 1", 0, "[CLS]", "[SEP]")),
    ("segment_ids", 5, 0, ("segment_ids", 1, "position 4")),
    ("masked_lm_weights", 0, 0.0, ("masked_lm_weights", 0.0, "slot 0")),
    ("masked_lm_weights", 1, float("nan"), ("masked_lm_weights", "nan", "slot 1")),
    ("masked_lm_positions", 2, 5, ("masked_lm_positions", 5, "slot 2", "weight")),
    ("masked_lm_ids", 2, 5, ("masked_lm_ids", 5, "slot 2", "weight")),
    ("masked_lm_positions", 0, 0, ("masked_lm_positions", 0, "slot 0", "[CLS]", "[SEP]")),
    ("masked_lm_positions", 0, 3, ("masked_lm_positions", 3, "slot 0", "[CLS]", "[SEP]")),
    ("masked_lm_positions", 0, 5, ("masked_lm_positions", 4, "slot 1", "ascending")),
    ("masked_lm_positions", 0, 4, ("masked_lm_positions", 4, "slot 1", "ascending")),
    ("masked_lm_ids", 0, MASK, ("position 2", "[MASK]")),
    ("masked_lm_ids", 0, len(WORDS), ("masked_lm_ids", len(WORDS), 0, len(WORDS) - 1)),
    ("input_ids", 1, 2**32 + 1, ("input_ids", 2**32 + 1, 0, len(WORDS) - 1)),
    ("input_ids", 0, THE, ("first", THE, f"[CLS], {CLS}")),
    ("input_ids", 3, THE, ("position 3", THE, f"[SEP], {SEP}")),
    ("input_ids", 6, CLS, ("position 6", f"id {CLS}", f"[SEP], {SEP}")),
    ("input_ids", 5, SEP, ("position 5", "[SEP]")),
    ("input_ids", 5, CLS, ("position 5", "[CLS]")),
    ("input_ids", 5, 0, ("position 5", "[PAD]")),
    ("segment_ids", slice(2, 4), [1, 1], ("segment 0", 2, 3)),
    ("segment_ids", slice(4, 6), [0, 0], ("segment 1", 1, 2)),
    ("segment_ids", slice(10), [0] * 10, ("segment 1", 0, 2)),
])  # fmt: skip
def test_violated_rule_is_reported_with_its_record(name, place, value, names, vocab_file, tmp_path):
    bad = good()
    bad[name][place] = value
    write(tmp_path / "0.tfrecord", [good()] * 3)
    write(tmp_path / "1.tfrecord", [good(), good(), bad, good(), bad])
    (told,) = problems(input_file=[str(tmp_path / "*.tfrecord")], vocab_file=vocab_file)
    assert_mentions(told, f"{tmp_path}/1.tfrecord", "record 2", *names)


def test_no_piece_continues_an_unknown_word_or_one_with_a_longer_first_piece(vocab_file, tmp_path):
    """Such pieces show that records were made with another vocabulary, even without a manifest."""
    possible = good("[CLS] cat [MASK] [SEP] dog sat [SEP]", masked_lm_ids=[*map(WORDS.index, ("##s", "sat")), 0])
    bad = good(masked_lm_ids=[*map(WORDS.index, ("cat", "[UNK]")), 0])
    bad["input_ids"][5] = WORDS.index("##s")
    (told,) = problems(input_file=[write(tmp_path / "x", [possible, bad])], vocab_file=vocab_file)
    assert_mentions(told, "record 1", "position 5", "WordPiece")
    repeated = ["the" if word == "dog" else word for word in WORDS]  # so no token has the id of the first
    many = [*WORDS, *map(str, range(2**16)), "##zz", "catzz"]
    for vocab, first, second in ((repeated, "the", "##s"), ([*WORDS, "si"], "s", "##ing"), (many, "cat", "##zz")):
        bad = good(masked_lm_ids=[*map(vocab.index, (second, "sat")), 0])
        bad["input_ids"][1] = vocab.index(first)
        path = write_vocab(tmp_path / "other.txt", vocab)
        (told,) = problems(input_file=[write(tmp_path / "x", [bad])], vocab_file=path)
        assert_mentions(told, "record 0", "position 2", "WordPiece")


def test_all_results_of_masking_are_accepted(vocab_file, tmp_path):
    texts = ("the cat [SEP] dog", "the [SEP] [SEP] [PAD]", "[UNK] [MASK] [SEP] dog")  # any token can be a replacement
    records = [good(f"[CLS] {text} sat [SEP]") for text in texts]
    # No prediction: --do_whole_word_mask skips a word with more pieces than can be predicted.
    none = {f"masked_lm_{name}": [0.0] * 3 for name in ("positions", "ids", "weights")}
    path = write(tmp_path / "x", [*records, good("[CLS] the cat [SEP] dog sat [SEP]", **none)])
    assert problems(input_file=[path], vocab_file=vocab_file) == []


def test_unmasked_records_are_checked(vocab_file, tmp_path):
    unmasked = good("[CLS] the cat [SEP] sat sat [SEP]")
    path = write(tmp_path / "x", [unmasked] * 3, record_samples.UNMASKED)
    found = check(input_file=[path], vocab_file=vocab_file)
    assert found.problems == []
    assert "not masked: masking happens during training" in found.checked[0]
    write(tmp_path / "x", [unmasked, good()], record_samples.UNMASKED)
    (told,) = problems(input_file=[path], vocab_file=vocab_file)
    assert_mentions(told, path, "record 1", "position 2", "[MASK]")


def test_a_vocabulary_with_a_byte_order_mark_is_that_of_its_records(corpus, tmp_path):
    marked = write_text(tmp_path / "marked.txt", b"\xef\xbb\xbf" + pathlib.Path(corpus[1]).read_bytes())
    samples.make_records((corpus[0], marked), tmp_path, num_shards=1, dupe_factor=1)
    path = str(tmp_path / "out.tfrecord")
    sizes = {"max_seq_length": samples.LENGTH, "max_predictions_per_seq": samples.PREDICTIONS, "do_train": True}
    for vocab_file in (marked, corpus[1]):
        assert problems(input_file=[path], vocab_file=vocab_file) == []
        inspect(InspectionOptions([path], vocab_file))
        settings = {"vocab_file": vocab_file, "bert_config_file": "", "output_dir": ""}
        options = PretrainingOptions(input_file=[path], **settings, **sizes)
        RecordFiles.find("input_file", options.phases[0], options, BertConfig(vocab_size=1000))
