"""A vocabulary smaller than the model's word embedding table, from training to an export, in every format."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.options import WRITABLE
from official_bert.pretraining.run import pretrain
from tests.conftest import WORDS
from tests.end_to_end.conftest import Run
from tests.make import tiny_config, write_text
from tests.pretraining.conftest import record_files, shared_record_files  # noqa: F401
from tests.pretraining.pretraining_runs import make_run_options

ROWS = 100


@pytest.mark.slow
def test_a_model_with_more_rows_than_tokens_is_trained_loaded_converted_fine_tuned_and_exported(
    record_files: list[str],  # noqa: F811
    run: Run,
    vocab_file: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
):
    note = f"the vocabulary has {len(WORDS)} tokens, the word table {ROWS} rows"
    config = write_text(tmp_path / "config.json", tiny_config(vocab_size=ROWS, num_hidden_layers=1).to_json())
    pretrain(make_run_options(record_files, config, tmp_path / "run", vocab_file=vocab_file, num_train_steps=2))
    assert f"warning: {note}" in capsys.readouterr().out

    ids = {"input_ids": np.array([[2, 57, 58, 3]]), "input_mask": np.ones((1, 4)), "segment_ids": np.zeros((1, 4))}
    expected = np.asarray(official_bert.load("run").model(ids)["sequence_output"])
    for name in WRITABLE:
        assert note in run("convert", "--from=run", f"--to={name}", f"--to_format={name}"), name
        checkpoint, again = open_model(name), official_bert.load(name)
        assert (checkpoint.config.vocab_size, (checkpoint.vocab or "").split()) == (ROWS, WORDS), name
        assert again.model.get_layer("word_embeddings").embeddings.shape[0] == ROWS
        np.testing.assert_allclose(np.asarray(again.model(ids)["sequence_output"]), expected, atol=1e-5)

    write_text(tmp_path / "data.csv", "text,label\n" + "the cat sat,cat\nthe dog sat,dog\n" * 8)
    data = "--task=table --train_file=data.csv --eval_file=data.csv --train_batch_size=8"
    tune = "--init=run --output_dir=tuned --do_train --do_eval --num_train_epochs=1 --max_seq_length=16"
    assert f"note: {note}" in run("finetune", *data.split(), *tune.split())
    assert open_model("tuned").config.vocab_size == ROWS

    for source, export_dir, *flags in (("tuned", "a"), ("run", "b"), ("run", "c", "--encoder")):
        run("export", f"--model_dir={source}", f"--export_dir={export_dir}", "--max_seq_length=16", *flags)
        outputs = tf.saved_model.load(f"{export_dir}/1").signatures["serving_default"](text=tf.constant(["the [MASK]"]))
        assert ("tokens" in outputs) == (export_dir == "b")
        if "tokens" in outputs:  # rows without a token are never an answer
            assert {each.decode() for each in outputs["tokens"].numpy().ravel()} <= {*WORDS, ""}
