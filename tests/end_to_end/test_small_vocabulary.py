"""A vocabulary smaller than the model's word embedding table, from training to an export, in every format."""

import dataclasses
import pathlib

import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.checkpoints import conversion
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.options import WRITABLE, ConversionOptions
from official_bert.finetuning import runner
from official_bert.finetuning.options import Options as FineTuningOptions
from official_bert.modeling.config import BertConfig
from official_bert.pretraining.run import pretrain
from official_bert.tasks.options import TableOptions
from tests.conftest import WORDS
from tests.export.exported_models import export
from tests.pretraining.conftest import record_files, shared_record_files  # noqa: F401
from tests.pretraining.pretraining_runs import options_for

ROWS = 100


@pytest.mark.slow
def test_a_model_with_more_rows_than_tokens_is_trained_loaded_converted_fine_tuned_and_exported(
    record_files: list[str],  # noqa: F811
    tiny_config: BertConfig,
    vocab_file: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
):
    assert len(WORDS) < ROWS
    config = dataclasses.replace(tiny_config, vocab_size=ROWS, num_hidden_layers=1)
    (tmp_path / "config.json").write_text(config.to_json())
    run = tmp_path / "run"
    pretrain(options_for(record_files, str(tmp_path / "config.json"), run, vocab_file=vocab_file, num_train_steps=2))
    note = f"the vocabulary has {len(WORDS)} tokens, the word table {ROWS} rows"
    assert f"warning: {note}" in capsys.readouterr().out

    loaded = official_bert.load(str(run))
    ids = {name: np.array([[2, 57, 58, 3]]) for name in ("input_ids",)}
    ids |= {"input_mask": np.ones((1, 4), np.int32), "segment_ids": np.zeros((1, 4), np.int32)}
    expected = np.asarray(loaded.model(ids)["sequence_output"])
    for name in WRITABLE:
        folder = tmp_path / name
        report = conversion.convert(ConversionOptions(from_=str(run), to=str(folder), to_format=name))
        assert note in "\n".join(report), name
        checkpoint = open_model(str(folder))
        assert checkpoint.config.vocab_size == ROWS, name
        assert checkpoint.vocab is not None
        assert checkpoint.vocab.split() == WORDS, name
        again = official_bert.load(str(folder))
        assert again.model.get_layer("word_embeddings").embeddings.shape[0] == ROWS
        np.testing.assert_allclose(np.asarray(again.model(ids)["sequence_output"]), expected, atol=1e-5)

    rows = ["text,label", *(f"the {word} sat,{word}" for word in ("cat", "dog") * 8)]
    (tmp_path / "data.csv").write_text("\n".join(rows) + "\n")
    fine_tuned = str(tmp_path / "tuned")
    runner.run(
        FineTuningOptions(
            task="table",
            task_options=TableOptions(train_file=str(tmp_path / "data.csv"), eval_file=str(tmp_path / "data.csv")),
            init=str(run),
            output_dir=fine_tuned,
            do_train=True,
            do_eval=True,
            num_train_epochs=1.0,
            train_batch_size=8,
            max_seq_length=16,
        )
    )
    assert f"note: {note}" in capsys.readouterr().out
    assert open_model(fine_tuned).config.vocab_size == ROWS

    for folder, flags in ((fine_tuned, {}), (str(run), {}), (str(run), {"encoder": True})):
        export_dir = str(tmp_path / f"export-{len(list(tmp_path.glob('export-*')))}")
        path = export(folder, export_dir, max_seq_length=16, **flags)
        answers = tf.saved_model.load(f"{export_dir}/1").signatures["serving_default"]
        outputs = answers(text=tf.constant(["the [MASK] sat"]))
        assert path
        assert ("tokens" in outputs) == (folder == str(run) and not flags)
        if "tokens" in outputs:  # rows without a token are never an answer
            assert {each.decode() for each in outputs["tokens"].numpy().ravel()} <= {*WORDS, ""}
