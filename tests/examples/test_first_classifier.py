"""Runs the commands and programs of docs/tutorials/first_classifier.md with a small model in place of BERT-Mini."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT

PAGE = ROOT / "docs" / "tutorials" / "first_classifier.md"
# Replacements for what would take long. Everything else runs exactly as on the page.
SHORTER = (
    ("--init=bert-mini --input_file=text.txt", "--init=small --input_file=heldout.txt"),
    ("--num_train_steps=2000", "--num_train_steps=10"),
    ("--num_train_epochs=4", "--num_train_epochs=1"),
)
CONFIG = {
    "vocab_size": 500, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 128,
}  # fmt: skip


def blocks() -> list[tuple[str, str]]:
    """Returns the command and program blocks of the page, each with its language."""
    text = PAGE.read_text(encoding="utf-8")
    for long, short in SHORTER:
        assert long in text, long
        text = text.replace(long, short)
    return re.findall(r"```(bash|python)\n(.*?)```", text, re.DOTALL)


def shell(command: str, folder: pathlib.Path) -> str:
    done = subprocess.run(["bash", "-e", "-c", command], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.slow
def test_the_page_leads_from_text_to_a_served_classifier(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python").symlink_to(sys.executable)
    command = programs / "official-bert"
    command.write_text(f"#!{sys.executable}\nfrom official_bert_cli import main\n\nmain()\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "make_table.py", tmp_path / "examples")
    (data, *before_serving, (_, serve), (_, client)) = blocks()
    shell(data[1], tmp_path)
    # Makes the initial model with a few training steps on a part of the text.
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    lengths = "--max_seq_length=128 --max_predictions_per_seq=20"
    shell(
        "official-bert learn-vocabulary --input_file=heldout.txt --vocab_file=vocab.txt --vocab_size=500\n"
        "official-bert make-records --input_file=heldout.txt --output_file=a.tfrecord --vocab_file=vocab.txt "
        f"{lengths}\n"
        "official-bert pretrain --do_train --input_file=a.tfrecord --output_dir=small --bert_config_file=config.json "
        f"--vocab_file=vocab.txt --num_train_steps=1 --num_warmup_steps=0 {lengths}",
        tmp_path,
    )
    outputs = "".join(shell(commands, tmp_path) for _, commands in before_serving)
    assert "coverage" in outputs
    rows = (tmp_path / "dev.csv").read_text(encoding="utf-8").count("\n") - 1
    assert len((tmp_path / "answers.jsonl").read_text(encoding="utf-8").splitlines()) == rows
    # Starts the server of the page on a free port.
    with subprocess.Popen([*serve.split(), "--port=0"], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as served:
        try:
            assert served.stderr
            url = json.loads(next(line for line in served.stderr if '"event":"ready"' in line))["url"]
            client = client.replace("http://127.0.0.1:8501", url)
            answered = shell(f"python - <<'END'\n{client}END", tmp_path)
        finally:
            served.terminate()
    assert re.fullmatch(r"copytree (files|mail|network|numbers|tasks|a person decides)\n", answered)
