"""Splitting text into held-out and training documents, and mixing in general text."""

import pathlib

import pytest

from official_bert.adaptation import records
from official_bert.adaptation.options import Options
from official_bert.adaptation.records import Texts
from official_bert.errors import UserError
from tests.adaptation.adapted_models import write_text


def prepared(folder: pathlib.Path, text: str, **changes: object) -> Texts:
    options = Options(init="none", input_file=[text], output_dir="none", **changes)  # type: ignore[arg-type]
    (folder / "texts").mkdir()
    return records.prepare_texts(options, str(folder / "texts"))


def documents(path: pathlib.Path) -> set[str]:
    return {document.strip() for document in path.read_text().split("\n\n") if document.strip()}


def test_documents_are_held_out_whole_and_none_is_lost(tmp_path: pathlib.Path):
    text = write_text(tmp_path / "text.txt", documents=100)
    facts = prepared(tmp_path, text, heldout_share=0.1)
    held, kept = (documents(tmp_path / "texts" / name) for name in (records.HELDOUT, records.DOMAIN))
    assert not held & kept
    assert held | kept == documents(tmp_path / "text.txt")
    total = facts.characters + facts.heldout_characters
    assert 0.05 * total < facts.heldout_characters <= 0.1 * total
    assert facts == records.read_texts(str(tmp_path / "texts"))
    assert facts.pairs


def test_equal_documents_are_on_one_side(tmp_path: pathlib.Path):
    text = pathlib.Path(write_text(tmp_path / "text.txt", documents=30))
    text.write_text("\n".join([text.read_text()] * 3))
    prepared(tmp_path, str(text), heldout_share=0.2)
    held, kept = (documents(tmp_path / "texts" / name) for name in (records.HELDOUT, records.DOMAIN))
    assert held
    assert not held & kept


def test_end_of_a_single_long_document_is_held_out(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    lines = [f"Sentence number {number} of the novel ." for number in range(100)]
    (tmp_path / "novel.txt").write_text("\n".join(lines) + "\n")
    prepared(tmp_path, str(tmp_path / "novel.txt"), heldout_share=0.1)
    assert "every document is longer than 10 % of the text" in capsys.readouterr().out
    assert (tmp_path / "texts" / records.HELDOUT).read_text().split("\n")[:-2] == lines[-10:]
    assert (tmp_path / "texts" / records.DOMAIN).read_text().split("\n")[:-2] == lines[:-10]


def test_a_text_of_one_sentence_is_too_little(tmp_path: pathlib.Path):
    (tmp_path / "text.txt").write_text("Only this .\n")
    with pytest.raises(UserError, match="--input_file contains 1 sentence"):
        prepared(tmp_path, str(tmp_path / "text.txt"))


def test_general_text_is_mixed_in_by_its_share_without_documents_of_the_domain(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    text = pathlib.Path(write_text(tmp_path / "text.txt", documents=50))
    general = pathlib.Path(write_text(tmp_path / "general.txt", documents=50, seed=1))
    shared = text.read_text().split("\n\n")[0]
    general.write_text(f"{general.read_text()}\n{shared}\n")
    facts = prepared(tmp_path, str(text), general_file=[str(general)], general_share=0.2)
    assert facts.general_share == pytest.approx(0.2, abs=0.02)
    held, mixed = (documents(tmp_path / "texts" / name) for name in (records.GENERAL_HELDOUT, records.GENERAL))
    assert held
    assert not held & mixed
    assert shared.strip() not in held | mixed
    assert "also in --input_file: 1 document" in capsys.readouterr().out


def test_general_text_that_is_not_mixed_in_is_held_out_completely(tmp_path: pathlib.Path):
    text, general = (write_text(tmp_path / f"{name}.txt", seed=name) for name in (0, 1))
    facts = prepared(tmp_path, text, general_file=[general])
    assert documents(tmp_path / "texts" / records.GENERAL_HELDOUT) == documents(tmp_path / "1.txt")
    assert facts.general_share == 0
    assert not (tmp_path / "texts" / records.GENERAL).exists()


def test_documents_that_hold_a_text_of_an_evaluation_file_are_left_out(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    text = write_text(tmp_path / "text.txt", documents=30)
    general = tmp_path / "general.txt"
    general.write_text("".join(f"number {number} is a sentence of other text .\nthe end .\n\n" for number in range(20)))
    of_domain, *_ = sorted(documents(tmp_path / "text.txt"))
    (tmp_path / "dev.txt").write_text("number 7 is a sentence of other text .\n" + " ".join(of_domain.split()) + "\n")
    prepared(
        tmp_path, text, heldout_share=0.2, general_file=[str(general)], general_share=0.2,
        exclude_texts=[str(tmp_path / "dev.txt")],
    )  # fmt: skip
    names = (records.HELDOUT, records.DOMAIN, records.GENERAL, records.GENERAL_HELDOUT)
    left = set.union(*(documents(tmp_path / "texts" / name) for name in names))
    assert of_domain not in left
    assert documents(tmp_path / "text.txt") - left == {of_domain}
    assert not any("number 7 " in document for document in left)
    assert capsys.readouterr().out.count("left out because of --exclude_texts: 1 document") == 2
