"""Statistics of records."""

import gzip
import random

import numpy as np

from data_gen.inspection import batches, statistics
from official_bert.data import record_codec, record_schema
from official_bert.tokenization import exact
from official_bert.utils import files
from tests.data_gen.samples import LENGTH, PREDICTIONS, make_records, parse_records, read_manifest
from tests.make import WORDS, write_text


def test_counts_equal_those_of_the_manifest(vocab_file, tmp_path, monkeypatch):
    rng = random.Random(0)
    words = [*(word for word in WORDS if word.isalpha()), "€"]
    sentences = [" ".join(rng.choices(words, k=rng.randrange(1, 12))) for _ in range(500)]
    text = write_text(tmp_path / "text", "\n".join("\n" * (rng.random() < 0.2) + each for each in sentences))
    make_records(([text], vocab_file), tmp_path, dupe_factor=1, num_shards=1, short_seq_prob=0.5)
    path, vocab = tmp_path / "out.tfrecord", exact.load_vocab(vocab_file)
    schema = batches.infer_schema([str(path)], len(vocab))
    assert schema == record_schema.pretraining_schema(LENGTH, PREDICTIONS, len(vocab), type_vocab_size=2)
    zipped = write_text(tmp_path / "zipped.gz", gzip.compress(path.read_bytes()))  # smaller than its records
    for file in (zipped, str(path)):
        read: list[int] = []
        counted = statistics.Statistics(schema, vocab)
        for batch in batches.read_batches(file, schema, read.append):
            counted.add(batch)
        assert sum(read) == files.size(file)
        assert min(read) >= 0
    records = parse_records(tmp_path)
    made = read_manifest(tmp_path)["statistics"]
    assert (counted.records, counted.random_next) == (made["instances"], made["random_next"])
    assert (counted.predictions, counted.text) == (made["predictions"], made["maskable"])
    assert counted.unknown == (record_codec.restore_masked_ids(records) == vocab["[UNK]"]).sum() > 0
    labels = records["masked_lm_ids"][records["masked_lm_weights"] > 0].tolist()
    ranked = sorted(set(labels), key=lambda label: (-labels.count(label), label))
    most = [(list(vocab)[label], labels.count(label)) for label in ranked]
    assert len({count for _, count in most}) < len(most), "some tokens are predicted equally often"
    assert counted.list_most_predicted(len(most) - 1) == most[:-1]
    drawn = []
    monkeypatch.setattr(statistics, "draw_histogram", lambda title, numbers, *counts: drawn.append(counts))
    counted.draw_histograms()
    (lengths,), (a,), (b,), (predictions,), (positions, totals) = drawn
    numbers = np.arange(LENGTH + 1)
    assert (numbers * lengths).sum() == made["tokens"]
    assert (numbers * (a + b)).sum() == made["maskable"]
    assert (np.arange(PREDICTIONS + 1) * predictions).sum() == positions.sum() == made["predictions"]
    assert totals.sum() == made["maskable"]


def test_the_statistics_of_many_numbers_fit_on_one_line():
    counts = np.zeros(100, int)
    counts[10:90] = 1
    lines = statistics.draw_histogram("Title", "numbers", counts).splitlines()
    assert lines[0] == "Title, by numbers"
    assert lines[1].split() == ["10-14", "5", "6.2", "%", "#" * 40]
    assert len(lines) == 17
    shares = statistics.draw_histogram("Title", "numbers", counts, counts * np.resize([1, 3], 100)).splitlines()
    assert shares[1].split()[:2] == ["10-14", "55.6"]  # 5 of 9
