"""An adaptation killed in any stage can be resumed and ends like an uninterrupted one."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from official_bert.checkpoints.loading import open_model
from official_bert.runs.training_log import read_log
from tests.adaptation.adapted_models import LENGTH, PREDICTIONS, write_text
from tests.conftest import ROOT
from tests.make import run_python


def command(source: pathlib.Path, folder: pathlib.Path, output: str) -> list[str]:
    flags = {
        "init": source, "input_file": folder / "text.txt", "general_file": folder / "general.txt", "new_words": 2,
        "output_dir": folder / output, "max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS,
        "train_batch_size": 8, "learning_rate": 1e-2, "num_train_steps": 40, "eval_steps": 10, "log_steps": 10,
        "save_checkpoints_steps": 5,
    }  # fmt: skip
    return ["-m", "official_bert_cli", "adapt", *(f"--{name}={value}" for name, value in flags.items())]


@pytest.mark.slow
def test_kill_in_each_stage_does_not_change_the_result(source: pathlib.Path, tmp_path: pathlib.Path):
    write_text(tmp_path / "text.txt", documents=200)
    write_text(tmp_path / "general.txt", seed=1)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    folder = tmp_path / "killed"
    stages = (
        "adaptation/texts/options.json", "adaptation/original/bert_config.json", "adaptation/initial/bert_config.json",
        "adaptation/records/initial/train.manifest.json", "adaptation/original_losses.json", "ckpt-10.index",
    )  # fmt: skip
    for stage in stages:
        process = subprocess.Popen([sys.executable, *command(source, tmp_path, "killed")], env=environment, cwd=ROOT)
        while process.poll() is None and not (folder / stage).exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (folder / stage).exists(), stage
        assert not (folder / "adapt.json").exists(), stage
    for output in ("killed", "whole"):
        run_python(*command(source, tmp_path, output), check=True)
    results = [json.loads((tmp_path / output / "adapt.json").read_text()) for output in ("killed", "whole")]
    assert results[0] == results[1]
    weights = [open_model(str(tmp_path / output)).weights for output in ("killed", "whole")]
    for name, value in weights[1].items():
        np.testing.assert_array_equal(weights[0][name], value, err_msg=name)
    assert [line["step"] for line in read_log(str(folder), "eval")] == [0, 10, 20, 30, 40]
