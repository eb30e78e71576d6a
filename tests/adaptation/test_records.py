"""Records of the text that a model is adapted to."""

import json
import pathlib

import tensorflow as tf

from official_bert.adaptation import records
from official_bert.checkpoints import resize
from official_bert.checkpoints.formats import own
from official_bert.checkpoints.loading import open_model
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


def test_markers_among_the_new_words_are_tokens_of_the_records(source: pathlib.Path, tmp_path: pathlib.Path):
    text = pathlib.Path(write_text(tmp_path / "text.txt"))
    text.write_text(text.read_text().replace("cat", "<user>"))
    options = make_options(source, str(text), tmp_path / "model")
    grown = resize.add_tokens(open_model(str(source)), ["<user>"], "unused_first")
    own.write(grown, str(tmp_path / "initial"))
    (tmp_path / records.TEXTS).mkdir()
    records.prepare_texts(options, str(tmp_path / records.TEXTS))
    made = records.make_records(options, str(tmp_path), "initial", 1)
    examples = [tf.train.Example.FromString(record.numpy()) for record in tf.data.TFRecordDataset(made.train)]
    ids = {index for each in examples for index in each.features.feature["input_ids"].int64_list.value}
    assert grown.tokenizer.vocab["<user>"] in ids
