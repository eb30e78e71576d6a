"""Output of inspect-records."""

import pathlib
import re

from data_gen.inspection.overview import inspect
from data_gen.options import InspectionOptions
from tests.data_gen.inspection.record_samples import DOG, THE, UNMASKED, good, keep_tokens, write
from tests.make import WORDS, assert_rejected, flip_bits, write_manifest, write_text, write_vocab


def test_records_are_printed_as_text(vocab_file, tmp_path, capsys):
    path, other = write(tmp_path / "x", [good(), keep_tokens()]), write(tmp_path / "y", [good()] * 2)
    inspect(InspectionOptions([path, other], vocab_file))
    first, second, third, summary = capsys.readouterr().out.split("\n\n")[:4]
    assert (third.split("\n")[0], summary.split()[:2]) == (f"{other}, record 0 (from 0)", ["records", "4"])
    assert first == (
        f"{path}, record 0 (from 0)\n"
        "  next sentence: b comes from elsewhere (1)\n"
        "  7 tokens, 3 positions of padding\n"
        "  2 predictions: 1 [MASK], 0 kept, 1 random\n"
        "  a: [CLS] the [MASK]{cat} [SEP]\n"
        "  b: dog{sat} sat [SEP]"
    )
    facts = ["record 1 (from 0)", "b follows a in the text (0)", "2 predictions: 1 [MASK], 1 kept, 0 random"]
    assert all(line in second for line in [*facts, "b: sat{sat} sat"])


def test_statistics_cover_all_records(vocab_file, tmp_path, capsys):
    write(tmp_path / "0.tfrecord", [keep_tokens()])
    write(tmp_path / "1.tfrecord", [good()] * 1999)  # more than are read in one batch
    report = tmp_path / "report.html"
    inspect(InspectionOptions([str(tmp_path / "*.tfrecord")], vocab_file, num_records=0, report=str(report)))
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert shown[:10] == [
        "records 2,000 of 10 positions",
        "tokens 14,000, 7.0 per record, including [CLS] and [SEP]",
        "padding 30.0 % of all positions",
        "unknown 0.00 % of the tokens of text are [UNK]",
        "random segments 100.0 % of the records",
        "predictions 4,000, 2.0 per record",
        "50.0 % of the tokens of text",
        *("[MASK] 50.0 % of these", "kept 0.0 % of these", "random 50.0 % of these"),
    ]
    assert {"7 2,000 100.0 % " + 40 * "#", "5 0.0 %"} <= {*shown}
    assert shown[-4:] == ["2,000 50.0 % cat", "2,000 50.0 % sat", "", f"Saved {report}"]
    assert "First records" not in report.read_text(encoding="utf-8")


def test_unmasked_records_are_printed(vocab_file, tmp_path, capsys):
    path, report = write(tmp_path / "x", [good("[CLS] the cat [SEP] dog dog [SEP]")], UNMASKED), tmp_path / "report"
    inspect(InspectionOptions([path], vocab_file, report=str(report)))
    shown, page = capsys.readouterr().out, report.read_text(encoding="utf-8")
    assert "  a: [CLS] the cat [SEP]\n  b: dog dog [SEP]" in shown
    assert "predictions       chosen during training: the records are not masked" in shown
    assert "Most predicted" not in shown
    assert "chosen during training" in page
    assert "<ruby" not in page


def test_records_without_predictions_are_printed(vocab_file, tmp_path, capsys):
    none = {f"masked_lm_{name}": [0.0] * 3 for name in ("positions", "ids", "weights")}
    record = good("[CLS] the [UNK] [SEP] dog dog [SEP]", **none)
    path, report = write(tmp_path / "x", [record]), tmp_path / "report.html"
    inspect(InspectionOptions([path, path], vocab_file, report=str(report)))
    shown, page = capsys.readouterr().out, report.read_text(encoding="utf-8")
    assert "  0 predictions: 0 [MASK], 0 kept, 0 random\n" in shown
    assert "predictions       0, 0.0 per record" in shown
    assert "unknown           25.00 % of the tokens of text" in shown
    assert "Most predicted" not in shown + page
    assert f"<title>Records of {path}, {path}</title>" in page


def test_long_tokens_and_ids_without_a_token_are_printed(tmp_path, capsys):
    long = "s-" * 60
    changed = {"sat": long, "dog": "the"}  # of equal lines, the last one determines the id
    vocab = write_vocab(tmp_path / "vocab.txt", [changed.get(word, word) for word in WORDS])
    inspect(InspectionOptions([write(tmp_path / "x", [good("[CLS] the [MASK] [SEP] dog ##able [SEP]")])], vocab))
    lines = f"  a: [CLS] <id {THE}> [MASK]{{cat}} [SEP]\n  b: the{{{long}}}\n     ##able [SEP]\n\n"
    assert lines in capsys.readouterr().out


def test_the_report_is_one_page_without_outside_resources(tmp_path):
    replaced = {"cat": "<script>", "dog": "&amp;", "sat": "سلام"}
    vocab = write_vocab(tmp_path / "vocab.txt", [replaced.get(word, word) for word in WORDS])
    path = write(tmp_path / "<b>&", [good(), keep_tokens()])
    pages = []
    for name in ("a.html", "b.html"):
        inspect(InspectionOptions([path], vocab, report=str(tmp_path / name)))
        pages.append((tmp_path / name).read_text(encoding="utf-8"))
    page, tags = pages[0], re.findall(r"<(\w+)", pages[0])
    assert page == pages[1]
    assert tags.count("pre") == 5
    assert not {"script", "b", "img", "link", "iframe"} & set(tags)
    assert not re.search(r"\b(src|href)=|@import|url\(", page)
    for text in (
        '<ruby class="hidden">[MASK]<rt>&lt;script&gt;</rt>',
        '<ruby class="random">&amp;amp;<rt>سلام</rt>',
        '<ruby class="kept">سلام<rt>سلام</rt>',
        '<td class="count">2</td><td class="count">50.0 %</td><td><div class="bar" style="width: 8.00rem">',
        f"{tmp_path}/&lt;b&gt;&amp;, record 1 (from 0)",
        'name="viewport"',
        '<span class="special">[SEP]</span>',
    ):
        assert text in page


def test_damaged_records_and_a_different_vocabulary_are_reported(tmp_path, vocab_file):
    small = write_vocab(tmp_path / "small.txt", WORDS[:DOG])
    path = write(tmp_path / "x", [good()])
    names = (path, "record 0", "input_ids", DOG, 0, DOG - 1, "--vocab_file")
    assert_rejected(names, inspect, InspectionOptions([path], small))
    # A manifest reveals a vocabulary with the same words in another order.
    permuted = write_vocab(tmp_path / "permuted.txt", [*WORDS[:-2], WORDS[-1], WORDS[-2]])
    inspect(InspectionOptions([path], permuted))
    write_manifest(tmp_path / "x", {path: 1}, vocab_file)
    inspect(InspectionOptions([path], vocab_file))
    assert_rejected((f"--vocab_file={permuted}", path), inspect, InspectionOptions([path], permuted))
    write(tmp_path / "x", [good()] * 2)
    inspect(InspectionOptions([path], permuted))  # the manifest describes another file
    flip_bits(path, 100)
    text = write_text(tmp_path / "text", "the cat")
    assert_rejected((path, "record 0", "byte 12"), inspect, InspectionOptions([path, text], vocab_file))
    assert_rejected((text, "[UNK]"), inspect, InspectionOptions([path], text))


def test_a_report_over_an_input_or_in_a_missing_folder_is_refused(vocab_file, tmp_path, capsys):
    path = write(tmp_path / "x", [good()])
    before = pathlib.Path(path).read_bytes()
    (tmp_path / "link").symlink_to(path)
    for report in (path, str(tmp_path / "link"), vocab_file):
        assert_rejected(("--report", report, "input"), inspect, InspectionOptions([path], vocab_file, report=report))
    assert_rejected("/proc/none", inspect, InspectionOptions([path], vocab_file, report="/proc/none/report.html"))
    assert capsys.readouterr().out == ""
    assert pathlib.Path(path).read_bytes() == before
