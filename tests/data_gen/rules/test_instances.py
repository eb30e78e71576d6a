"""Making instances from documents."""

import random

from data_gen.rules.instances import InstanceConfig, instances_of_document
from tests.data_gen.rules.test_masking import masking_vocabulary
from tests.data_gen.samples import make_instance_config


def config(**changes: object) -> InstanceConfig:
    return make_instance_config(vocabulary=masking_vocabulary(), **changes)


def test_document_of_one_sentence_always_gets_a_random_second_segment():
    documents = [[[5, 6, 7]], [[8, 9]]]
    instances = list(instances_of_document(documents, 0, config(), random.Random(0)))
    assert [instance.is_random_next for instance in instances] == [True]


def test_single_document_pairs_with_itself():
    instances = list(instances_of_document([[[5, 6]]], 0, config(), random.Random(0)))
    assert instances[0].is_random_next
    assert instances[0].segment_ids == [0] * 4 + [1] * 3


def test_unused_sentences_are_put_back():
    document = [[5], [6], [7], [8]]
    rng = random.Random(3)
    random_next = 0
    for _ in range(100):
        used: list[int] = []
        for instance in instances_of_document([document, [[9]]], 0, config(max_predictions_per_seq=0), rng):
            first = instance.segment_ids.index(1)
            random_next += instance.is_random_next
            used += instance.input_ids[1 : first - 1]
            used += [] if instance.is_random_next else instance.input_ids[first:-1]
        assert used == [5, 6, 7, 8]  # uses each sentence once, in order: if b is random, the text after a is used again
    assert random_next > 100
