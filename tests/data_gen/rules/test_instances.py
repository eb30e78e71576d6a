"""Other ways to make instances than sentence pairs, and their random numbers."""

import itertools
import random

import numpy as np
import pytest

from data_gen.inspection import validation
from data_gen.inspection.overview import inspect
from data_gen.options import InspectionOptions
from data_gen.rules import vectorized_instances
from data_gen.rules.instances import InstanceConfig, make_full_sentences
from data_gen.rules.masking import MaskingVocabulary
from data_gen.rules.random_numbers import Random
from official_bert.data.manifest import Manifest
from official_bert.tokenization.exact import SPECIAL_TOKENS
from tests.data_gen.inspection.record_samples import problems
from tests.data_gen.samples import assert_alike, histogram, make_instance_config, make_records, make_store
from tests.make import assert_mentions, write_text, write_vocab

CLS, SEP, LENGTH = 2, 3, 24


def make_config(**changes: object) -> InstanceConfig:
    vocabulary = MaskingVocabulary(list(range(1 << 18)), frozenset(), frozenset((CLS, SEP)), 4)
    sizes = {"max_seq_length": LENGTH, "max_predictions_per_seq": 0}
    return make_instance_config(**sizes, sentence_objective="none", vocabulary=vocabulary, **changes)


def make_documents(count: int, longest_sentence: int, most_sentences: int = 9) -> list[list[list[int]]]:
    """Makes documents whose tokens count up across all of them, so that a token identifies its position."""
    rng, tokens = random.Random(count), itertools.count(10)

    def make_sentence() -> list[int]:
        return list(itertools.islice(tokens, rng.randint(1, longest_sentence)))

    return [[make_sentence() for _ in range(rng.randint(1, most_sentences))] for _ in range(count)]


def test_fast_full_sentences_equal_those_of_the_reference(tmp_path):
    # Without short targets, long sentences and masks, nothing is random.
    documents, config = make_documents(400, 8), make_config()
    fast = vectorized_instances.make_instances(make_store(documents, tmp_path), 0, 400, config, Random("full"))
    reference = list(make_full_sentences(documents, config, random.Random(0)))
    assert len(reference) == len(fast.length) > 200
    for row, instance in enumerate(reference):
        assert fast.ids[row].tolist() == instance.input_ids + [0] * (LENGTH - fast.length[row])
        assert (fast.first_length[row], fast.special[row]) == (len(instance.input_ids), instance.special)
        assert instance.segment_ids == [0] * len(instance.input_ids)
    assert not fast.is_random_next.any()
    # The whole text in order: as many whole sentences as fit, and a [SEP] where a new document begins.
    sentences = {sentence[0]: sentence for document in documents for sentence in document}
    begins = {document[0][0] for document in documents}
    text = [token for each in reference for token in each.input_ids if token not in (CLS, SEP)]
    assert text == list(itertools.chain(*sentences.values()))
    for this, following in itertools.pairwise([each.input_ids for each in reference]):
        first = following[1]
        assert first in sentences
        assert len(this) + len(sentences[first]) + (first in begins) > LENGTH
        for before, after in itertools.pairwise(this[1:-1]):
            assert (before == SEP) == (after in begins)


# Many sentences are longer than a record, or several fit into each.
@pytest.mark.parametrize(("longest_sentence", "most_sentences"), [(40, 4), (4, 20)])
def test_full_sentences_are_shortened_like_the_reference(longest_sentence, most_sentences, tmp_path):
    documents = make_documents(3000, longest_sentence, most_sentences)
    config, store = make_config(short_seq_prob=0.5), make_store(documents, tmp_path)
    fast = vectorized_instances.make_instances(store, 0, len(documents), config, Random("short"))
    reference = [each.input_ids for each in make_full_sentences(documents, config, random.Random(0))]
    firsts = np.array([sentence[0] for document in documents for sentence in document])
    lengths, cuts = [], []
    second_tokens = [row[1] for row in reference]
    for tokens, length in ((second_tokens, list(map(len, reference))), (fast.ids[:, 1], fast.length)):
        assert max(length) == LENGTH
        lengths.append(histogram(length, LENGTH))
        cuts.append(histogram(np.array(tokens, int) - firsts[np.searchsorted(firsts, tokens, side="right") - 1], 30))
    assert_alike(lengths[0], lengths[1], "length")
    assert_alike(cuts[0], cuts[1], "tokens cut in front")


def test_a_last_sentence_of_one_token_is_an_instance():
    (instance,) = make_full_sentences([[[7]]], make_config(), random.Random(0))
    assert (instance.input_ids, instance.special) == ([CLS, 7, SEP], 2)


@pytest.mark.parametrize("algorithm", ["fast", "reference"])
def test_records_of_one_segment_are_recorded_verified_and_shown(algorithm, tmp_path, capsys):
    vocab = write_vocab(tmp_path / "vocab.txt", [*SPECIAL_TOKENS, *"abcdefghij"])
    text = write_text(tmp_path / "text.txt", "a b c d\ne f\ng h i\nj a\n\nb c\nd e f\n\ng h\n" * 5)
    flags = {"algorithm": algorithm, "num_shards": 1, "sentence_objective": "none", "masking_rates": "0/100/0"}
    summary = make_records(([text], vocab), tmp_path, **flags)
    recorded = Manifest.read(str(tmp_path / "out.manifest.json")).source["flags"]
    assert (recorded["sentence_objective"], recorded["masking_rates"]) == ("none", "0/100/0")
    files = {"input_file": [str(tmp_path / "out.tfrecord")], "vocab_file": vocab}
    assert problems(**files) == []
    inspect(InspectionOptions(**files))
    shown, predictions = capsys.readouterr().out, f"{summary['predictions']:,},"
    for part in ("label of the segments: none (0)", predictions, "  kept            100.0 % of these"):
        assert part in shown


def test_records_of_one_segment_are_distinguished_from_damaged_pairs():
    one = {"input_ids": np.array([[CLS, 7, SEP, 8, SEP]]), "input_mask": np.ones((1, 5), int)}
    one["segment_ids"] = np.zeros((1, 5), int)
    pair = {**one, "segment_ids": np.array([[0, 0, 0, 1, 1]])}
    pieces = validation.WordPieces({"[PAD]": 0, "[UNK]": 1, "[CLS]": CLS, "[SEP]": SEP, "[MASK]": 4, "a": 7, "b": 8})
    assert validation.find_first_violation(one, pieces, one_segment=True) is None
    assert validation.find_first_violation(pair, pieces) is None
    assert_mentions(validation.find_first_violation(one, pieces)[1], "segment 1", 0, 2)
    assert_mentions(validation.find_first_violation(pair, pieces, one_segment=True)[1], "segment 1", 2, "one")
