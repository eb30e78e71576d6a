"""What inspect_records shows."""

import html.parser
import json
import pathlib
import random
import re
import subprocess
import sys

import numpy as np
import pytest

from data_gen.inspection import batches
from data_gen.inspection.overview import inspect
from data_gen.inspection.statistics import Histogram, Statistics
from data_gen.options import InspectionOptions, RecordOptions
from data_gen.pipelines import one_machine
from official_bert.data import record_schema
from official_bert.errors import UserError
from official_bert.tokenization import exact
from tests.conftest import ROOT, WORDS
from tests.data_gen.test_verify_records import CAT, DOG, MASK, THE, UNMASKED, Values, good, write

Batch = batches.Batch


def with_kept() -> Values:
    kept = good()
    kept["input_ids"][4] = kept["masked_lm_ids"][1]
    kept["next_sentence_labels"] = [0]
    return kept


def test_records_are_shown_readably(vocab_file: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    path = write(tmp_path / "x", [good(), with_kept(), good()])
    inspect(InspectionOptions([path], vocab_file, num_records=2))
    assert capsys.readouterr().out.split("\n\n")[:2] == [
        (
            f"{path}, record 0 (from 0)\n"
            "  next sentence: b comes from elsewhere (1)\n"
            "  7 tokens, 3 positions of padding\n"
            "  2 to be predicted: 1 [MASK], 0 kept, 1 random\n"
            "  a: [CLS] the [MASK]{cat} [SEP]\n"
            "  b: dog{sat} sat [SEP]"
        ),
        (
            f"{path}, record 1 (from 0)\n"
            "  next sentence: b follows a in the text (0)\n"
            "  7 tokens, 3 positions of padding\n"
            "  2 to be predicted: 1 [MASK], 1 kept, 0 random\n"
            "  a: [CLS] the [MASK]{cat} [SEP]\n"
            "  b: sat{sat} sat [SEP]"
        ),
    ]


def test_statistics_are_of_all_records(vocab_file: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    write(tmp_path / "0.tfrecord", [good()] * 1999)  # more than are read at once
    write(tmp_path / "1.tfrecord", [with_kept()])
    inspect(InspectionOptions([str(tmp_path / "*.tfrecord")], vocab_file, num_records=0))
    told = capsys.readouterr().out
    for line in (
        "records           2,000 of 10 positions",
        "tokens            14,000, 7.0 a record, [CLS] and [SEP] included",
        "padding           30.0 % of all positions",
        "unknown           0.00 % of the tokens of text are [UNK]",
        "random or swapped 100.0 % of the records",
        "to be predicted   4,000, 2.0 a record",
        "50.0 % of the tokens of text",
        "[MASK]          50.0 % of these",
        "random          50.0 % of these",
        "          7         2,000 100.0 %  " + 40 * "#",
        "          2 100.0 %  " + 40 * "#",
        "          5   0.0 %",
        "          2,000  50.0 %  cat",
    ):
        assert re.search(f"^ *{re.escape(line.strip())}$", told, re.MULTILINE), line


def plain_counts(batch: Batch, unk: int) -> dict[str, int]:
    """The statistics, record by record and token by token."""
    found = dict.fromkeys(("text", "unknown", "hidden", "kept", "replaced", "random_next"), 0)
    for row in range(len(batch["input_ids"])):
        ids, segments = list(batch["input_ids"][row]), list(batch["segment_ids"][row])
        found["random_next"] += batch["next_sentence_labels"][row, 0]
        for slot, weight in enumerate(batch["masked_lm_weights"][row]):
            if weight:
                position, original = batch["masked_lm_positions"][row, slot], batch["masked_lm_ids"][row, slot]
                shown = ids[position]
                found["hidden" if shown == MASK else "kept" if shown == original else "replaced"] += 1
                ids[position] = original
        tokens = ids[: batch["input_mask"][row].sum()]
        specials = {0, segments.index(1) - 1, len(tokens) - 1}
        text = [token for position, token in enumerate(tokens) if position not in specials]
        found["text"] += len(text)
        found["unknown"] += text.count(unk)
    return found


def test_counts_are_those_of_a_plain_loop_and_of_the_manifest(vocab_file: str, tmp_path: pathlib.Path):
    rng = random.Random(0)
    words = [word for word in WORDS if word.isalpha()]
    sentences = [" ".join(rng.choices([*words, "€"], k=rng.randrange(1, 12))) for _ in range(500)]
    text = "\n".join("\n" * (rng.random() < 0.2) + sentence for sentence in sentences)
    (tmp_path / "text").write_text(text, encoding="utf-8")
    options = RecordOptions(
        [str(tmp_path / "text")], [str(tmp_path / "x.tfrecord")], vocab_file, max_seq_length=32,
        max_predictions_per_seq=5, dupe_factor=1, short_seq_prob=0.5, algorithm="reference",
    )  # fmt: skip
    one_machine.create_pretraining_data(options)
    path, vocab = str(tmp_path / "x.tfrecord"), exact.load_vocab(vocab_file)
    schema = batches.schema_of([path], len(vocab))
    assert {name: feature.shape for name, feature in schema.items()} == {
        name: feature.shape for name, feature in record_schema.pretraining_schema(32, 5).items()
    }
    read: list[int] = []
    read_batches = list(batches.read_batches(path, schema, read.append))
    assert sum(read) == pathlib.Path(path).stat().st_size
    statistics = Statistics(schema, vocab)
    for batch in read_batches:
        statistics.add(batch)
    whole = {name: np.concatenate([batch[name] for batch in read_batches]) for name in schema}
    expected = plain_counts(whole, vocab["[UNK]"])
    assert {name: getattr(statistics, name) for name in expected} == expected
    assert expected["replaced"] > 0
    assert expected["unknown"] > 0
    made = json.loads((tmp_path / "x.manifest.json").read_text())["statistics"]
    assert (statistics.records, statistics.random_next) == (made["instances"], made["random_next"])
    assert (statistics.predictions, statistics.text) == (made["predictions"], made["maskable"])
    lengths, a, b, predictions, positions = statistics.histograms()
    numbers = np.arange(33)
    assert (numbers * lengths.counts).sum() == made["tokens"]
    assert (numbers * (a.counts + b.counts)).sum() == made["maskable"]
    assert (np.arange(6) * predictions.counts).sum() == positions.counts.sum() == made["predictions"]
    assert positions.out_of is not None
    assert positions.out_of.sum() == made["maskable"]


def test_many_numbers_share_a_line():
    counts = np.zeros(100, int)
    counts[10:90] = 1
    lines = str(Histogram("Title", "numbers", counts)).splitlines()
    assert lines[0] == "Title, by numbers"
    assert lines[1].split() == ["10-14", "5", "6.2", "%", "#" * 40]
    assert len(lines) == 17


class Page(html.parser.HTMLParser):
    """The tags, their attributes, and the words between them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words += data


def test_report_is_one_page_with_its_plots_inside(vocab_file: str, tmp_path: pathlib.Path):
    pieces = ["<script>" if word == "cat" else "&amp;" if word == "dog" else word for word in WORDS]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    path = write(tmp_path / "<b>&", [good(), with_kept()])
    pages = []
    for name in ("a.html", "b.html"):
        inspect(InspectionOptions([path], str(tmp_path / "vocab.txt"), report=str(tmp_path / name)))
        pages.append((tmp_path / name).read_text(encoding="utf-8"))
    assert pages[0] == pages[1]
    page = Page()
    page.feed(pages[0])
    assert page.tags.count("svg") == 5
    assert not {"script", "b", "img", "link", "iframe"} & set(page.tags)
    assert "[MASK]<script>" in page.words
    assert "&amp;sat" in page.words
    assert f"{path}, record 1 (from 0)" in page.words
    for name, value in page.attributes:
        if name in ("src", "href", "xlink:href"):
            assert value is not None
            assert value.startswith("#"), value
    assert "@import" not in pages[0]
    assert all(value.startswith("#") for value in re.findall(r"url\(([^)]*)\)", pages[0]))
    assert 'name="viewport"' in pages[0]


def test_tokens_of_any_script_are_drawn_without_a_warning(tmp_path: pathlib.Path):
    pieces = ["包" if word == "cat" else "سلام" if word == "sat" else word for word in WORDS]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    report = tmp_path / "report.html"
    inspect(InspectionOptions([write(tmp_path / "x", [good()])], str(tmp_path / "vocab.txt"), report=str(report)))
    assert "包" in report.read_text(encoding="utf-8")


def test_unmasked_records_are_shown_and_said_to_be(
    vocab_file: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    path = write(tmp_path / "x", [{**good(), "input_ids": [2, THE, CAT, 3, DOG, DOG, 3, 0, 0, 0]}], UNMASKED)
    inspect(InspectionOptions([path], vocab_file, report=str(tmp_path / "report.html")))
    told = capsys.readouterr().out
    assert "  a: [CLS] the cat [SEP]\n  b: dog dog [SEP]" in told
    assert "to be predicted   chosen during training: the records are not masked" in told
    assert "Most predicted" not in told
    assert "chosen during training" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_bad_records_and_another_vocabulary_are_named(tmp_path: pathlib.Path, vocab_file: str):
    (tmp_path / "small.txt").write_text("\n".join(WORDS[:DOG]), encoding="utf-8")
    path = write(tmp_path / "x", [good()])
    with pytest.raises(UserError, match=rf"x: record 0 \(from 0\): input_ids holds {DOG}.*another vocabulary"):
        inspect(InspectionOptions([path], str(tmp_path / "small.txt")))
    content = bytearray(pathlib.Path(path).read_bytes())
    content[100] ^= 1
    pathlib.Path(path).write_bytes(content)
    with pytest.raises(UserError, match=r"x: record 0 \(from 0\), near byte 12, is damaged"):
        inspect(InspectionOptions([path], vocab_file))


def test_a_report_over_an_input_is_refused(vocab_file: str, tmp_path: pathlib.Path):
    path = write(tmp_path / "x", [good()])
    before = pathlib.Path(path).read_bytes()
    (tmp_path / "link").symlink_to(path)
    for report in (path, str(tmp_path / "link"), vocab_file):
        with pytest.raises(UserError, match="which is an input"):
            inspect(InspectionOptions([path], vocab_file, report=report))
    assert pathlib.Path(path).read_bytes() == before
    with pytest.raises(UserError, match="--num_records is -1"):
        InspectionOptions([path], vocab_file, num_records=-1)


def test_command_whose_reader_has_seen_enough_ends_quietly(vocab_file: str, tmp_path: pathlib.Path):
    path, report = write(tmp_path / "x", [good()] * 2000), tmp_path / "report.html"
    flags = f"--input_file={path} --vocab_file={vocab_file} --num_records=2000 --report={report}"
    command = f"{sys.executable} -m official_bert_cli inspect-records {flags} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == f"{path}, record 0 (from 0)\n"
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
