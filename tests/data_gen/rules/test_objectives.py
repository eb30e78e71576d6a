"""Objectives other than next sentence prediction: full sentences (RoBERTa) and other masking rates."""

import itertools
import pathlib
import random

import numpy as np
import pytest

from data_gen.inspection import validation
from data_gen.inspection.overview import inspect
from data_gen.inspection.validation import WordPieces
from data_gen.inspection.verification import verify
from data_gen.options import InspectionOptions, RecordOptions, VerificationOptions
from data_gen.pipelines import one_machine
from data_gen.rules import vectorized_instances
from data_gen.rules.instances import InstanceConfig, full_sentences
from data_gen.rules.masking import MaskingVocabulary
from data_gen.rules.random_numbers import Random
from official_bert.data.manifest import Manifest
from official_bert.tokenization.exact import SPECIAL_TOKENS
from tests.data_gen.distributions import assert_alike, histogram
from tests.data_gen.samples import make_instance_config, make_options, make_store
from tests.make import refusal, write_text, write_vocab

CLS, SEP, LENGTH = 2, 3, 24
Documents = list[list[list[int]]]


def config(**changes: object) -> InstanceConfig:
    vocabulary = MaskingVocabulary(list(range(1 << 18)), frozenset(), frozenset((CLS, SEP)), 4)
    return make_instance_config(max_seq_length=LENGTH, max_predictions_per_seq=0, vocabulary=vocabulary, **changes)


def make_documents(count: int, longest_sentence: int, most_sentences: int = 9) -> Documents:
    """Makes documents whose tokens count up across all of them, so that a token identifies its position."""
    rng = random.Random(count)
    documents, token = [], 10
    for _ in range(count):
        document = []
        for _ in range(rng.randint(1, most_sentences)):
            size = rng.randint(1, longest_sentence)
            document.append(list(range(token, token + size)))
            token += size
        documents.append(document)
    return documents


def test_fast_full_sentences_equal_those_of_the_reference(tmp_path: pathlib.Path):
    # Without short targets, long sentences and masks, nothing is random.
    documents = make_documents(400, 8)
    fast = vectorized_instances.make_instances(
        make_store(documents, tmp_path), 0, len(documents), config(sentence_objective="none"), Random("full")
    )
    reference = list(full_sentences(documents, config(sentence_objective="none"), random.Random(0)))
    assert len(reference) == len(fast.length) > 200
    for row, instance in enumerate(reference):
        assert fast.ids[row, : fast.length[row]].tolist() == instance.input_ids
        assert not fast.ids[row, fast.length[row] :].any()
        assert (fast.first_length[row], fast.special[row]) == (len(instance.input_ids), instance.special)
        assert instance.segment_ids == [0] * len(instance.input_ids)
    assert not fast.is_random_next.any()
    # The whole text in order: as many whole sentences as fit, and a [SEP] where a new document begins.
    text = [token for each in reference for token in each.input_ids if token not in (CLS, SEP)]
    assert text == [token for document in documents for sentence in document for token in sentence]
    ends = {sentence[-1] for document in documents for sentence in document}
    begins = {document[0][0] for document in documents}
    sizes = {sentence[0]: len(sentence) for document in documents for sentence in document}
    for this, following in itertools.pairwise(reference):
        assert this.input_ids[-2] in ends
        first = following.input_ids[1]
        assert len(this.input_ids) + sizes[first] + (first in begins) > LENGTH
        for before, after in zip(this.input_ids[1:-1], this.input_ids[2:-1], strict=False):
            assert (before == SEP) == (after in begins and after != this.input_ids[1]) or after == SEP


def test_full_sentences_are_shortened_alike(tmp_path: pathlib.Path):
    documents = make_documents(3000, 40, most_sentences=4)  # many sentences are longer than a record
    settings = config(sentence_objective="none", short_seq_prob=0.5)
    fast = vectorized_instances.make_instances(
        make_store(documents, tmp_path), 0, len(documents), settings, Random("short")
    )
    reference = list(full_sentences(documents, settings, random.Random(0)))
    starts = {sentence[0]: sentence for document in documents for sentence in document}
    firsts = np.array(sorted(starts))

    def cut_in_front(first_token: int) -> int:
        return first_token - int(firsts[np.searchsorted(firsts, first_token, side="right") - 1])

    assert max(map(len, (each.input_ids for each in reference))) == fast.length.max() == LENGTH
    assert_alike(
        histogram(np.array([len(each.input_ids) for each in reference]), LENGTH),
        histogram(fast.length, LENGTH),
        "length",
    )
    assert_alike(
        histogram(np.array([cut_in_front(each.input_ids[1]) for each in reference]), 30),
        histogram(np.array([cut_in_front(int(ids[1])) for ids in fast.ids]), 30),
        "tokens cut in front",
    )


def make_flags(folder: pathlib.Path, **changes: object) -> RecordOptions:
    vocab = write_vocab(folder / "vocab.txt", [*SPECIAL_TOKENS, *"abcdefghij"])
    sizes = {"max_seq_length": 16, "max_predictions_per_seq": 3, "num_shards": 1, "num_workers": 1}
    return make_options(([write_text(folder / "text.txt", TEXT)], vocab), folder, **sizes, **changes)


TEXT = "a b c d\ne f\ng h i\nj a\n\nb c\nd e f\n\ng h\n" * 5


@pytest.mark.parametrize("algorithm", ["fast", "reference"])
def test_records_of_one_segment_are_recorded_verified_and_shown(
    algorithm: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    options = make_flags(tmp_path, sentence_objective="none", masking_rates="0/100/0", algorithm=algorithm)
    summary = one_machine.create_pretraining_data(options)
    flags = Manifest.read(str(tmp_path / "out.manifest.json")).source["flags"]
    assert (flags["sentence_objective"], flags["masking_rates"]) == ("none", "0/100/0")
    found = verify(VerificationOptions(input_file=options.output_file, vocab_file=options.vocab_file))
    assert not found.problems
    inspect(InspectionOptions(input_file=options.output_file, vocab_file=options.vocab_file))
    shown = capsys.readouterr().out
    assert "label of the segments: none (0)" in shown
    assert f"{summary.predictions:,}," in shown
    assert "  kept            100.0 % of these" in shown


def test_records_of_one_segment_are_told_from_damaged_pairs():
    ids = np.array([[CLS, 7, SEP, 8, SEP]])
    batch = {"input_ids": ids, "input_mask": np.ones((1, 5), int), "segment_ids": np.zeros((1, 5), int)}
    vocab = {"[PAD]": 0, "[UNK]": 1, "[CLS]": CLS, "[SEP]": SEP, "[MASK]": 4, "a": 7, "b": 8}
    assert validation.find_first_violation(batch, WordPieces(vocab), one_segment=True) is None
    violation = validation.find_first_violation(batch, WordPieces(vocab))
    assert violation is not None
    assert "segment 1 has 0 tokens" in violation[1]
    pair = {**batch, "segment_ids": np.array([[0, 0, 0, 1, 1]])}
    violation = validation.find_first_violation(pair, WordPieces(vocab), one_segment=True)
    assert violation is not None
    assert "segment 1 has 2 tokens; expected one segment" in violation[1]


@pytest.mark.parametrize("rates", ["80/10", "80/10/20", "eighty", "-10/10/100", "80.0/10/10"])
def test_invalid_rates_are_rejected(rates: str, tmp_path: pathlib.Path):
    assert f"--masking_rates is {rates!r}; " in refusal(make_flags, tmp_path, masking_rates=rates)
