"""Records of what is adapted to."""

import json
import pathlib

from official_bert.adaptation import records
from tests.adaptation.adapted_models import make_options, write_text


def test_listed_words_are_masked_together(source: pathlib.Path, tmp_path: pathlib.Path):
    (tmp_path / "words.txt").write_text("cat-dog\n")
    text = write_text(tmp_path / "text.txt")
    options = make_options(
        source, text, tmp_path / "model", do_whole_word_mask=True, word_boundaries=str(tmp_path / "words.txt")
    )
    (tmp_path / records.TEXTS).mkdir()
    records.prepare_texts(options, str(tmp_path / records.TEXTS))
    (tmp_path / "initial").symlink_to(source)
    made = records.make_records(options, str(tmp_path), "initial", 1)
    for path in (made.train, made.heldout):
        manifest = json.loads(pathlib.Path(path.replace(".tfrecord", ".manifest.json")).read_text())
        assert manifest["source"]["flags"]["word_boundaries"].startswith("sha256: ")
