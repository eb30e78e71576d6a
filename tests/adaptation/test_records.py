"""Records of what is adapted to."""

import json
import pathlib

from official_bert.adaptation import records, texts
from official_bert.tokenization.casing import UNCASED
from tests.adaptation.adapted_models import options_for, write_text


def test_words_that_are_masked_together_are_those_of_the_list(vocab_file: str, tmp_path: pathlib.Path):
    (tmp_path / "words.txt").write_text("cat-dog\n")
    (tmp_path / "texts").mkdir()
    for name in (texts.DOMAIN, texts.HELDOUT):
        write_text(tmp_path / "texts" / name)
    options = options_for(
        tmp_path, "text.txt", tmp_path / "model", do_whole_word_mask=True, word_boundaries=str(tmp_path / "words.txt")
    )
    facts = texts.Texts(1000, 100, 0, 0.0, True)
    made = records.make(options, facts, str(tmp_path / "texts"), vocab_file, UNCASED, 1, str(tmp_path))
    for path in (made.train, made.heldout):
        manifest = json.loads(pathlib.Path(path.replace(".tfrecord", ".manifest.json")).read_text())
        assert manifest["source"]["flags"]["word_boundaries"].startswith("sha256: ")
