"""Installs the wheel into this environment and uses it as its user would: `make test-install`.

    environment/bin/python tests/install/use_installed.py FOLDER [--lowest]

FOLDER holds the wheel. With --lowest, the lowest versions that the wheel accepts are installed.
"""

import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat sat on a mat dog ran in sun and . ,".split()
TEXT = "the cat sat on a mat .\nthe dog ran in the sun .\na cat and a dog sat .\n\n" * 40

WRITE_RECORDS = """
import tensorflow as tf
ints = lambda values: tf.train.Feature(int64_list=tf.train.Int64List(value=values))
with tf.io.TFRecordWriter("hand.tfrecord") as writer:
    for number in range(64):
        features = {
            "input_ids": ints([2, 5, 4, 7, 3, 9, 10, 3] + [0] * 8), "input_mask": ints([1] * 8 + [0] * 8),
            "segment_ids": ints([0] * 5 + [1] * 3 + [0] * 8), "masked_lm_positions": ints([2, 0]),
            "masked_lm_ids": ints([6, 0]), "next_sentence_labels": ints([number % 2]),
            "masked_lm_weights": tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, 0.0])),
        }
        writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
"""
LOAD = """
import importlib.util, official_bert
loaded = official_bert.load("model")
assert loaded.tokenizer.tokenize("the cat") == ["the", "cat"]
for name in ("run_pretraining", "run_finetuning", "extract_features", "data_gen.create_pretraining_data"):
    assert importlib.util.find_spec(name), f"{name} is not installed"
for name in ("configs", "tests", "tools"):
    assert importlib.util.find_spec(name) is None, f"{name} is installed as a module"
"""

SCRIPTS = pathlib.Path(sys.executable).parent
LEARN = ["--input_file=text.txt", "--vocab_file=learned.txt", "--vocab_size=40"]
FLAGS = ["--max_seq_length=16", "--max_predictions_per_seq=2"]


def run(*command: str, code: int = 0) -> str:
    """Runs a program of this environment and returns what it says; another exit code ends the check."""
    done = subprocess.run([SCRIPTS / command[0], *command[1:]], capture_output=True, text=True, check=False)
    if done.returncode != code:
        raise SystemExit(f"error: {' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def install(wheel: str, extras: str, constraints: list[str]) -> None:
    start = time.monotonic()
    requirement = f"{wheel}[{extras}]" if extras else wheel
    run("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement, *constraints)
    folder = pathlib.Path(next(path for path in sys.path if path.endswith("site-packages")))
    size = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
    print(
        f"  pip install [{extras}]: {time.monotonic() - start:.0f} s, {size / 1e6:,.0f} MB in site-packages", flush=True
    )


def lowest(extras: set[str]) -> list[str]:
    """Returns the lower ends of the installed wheel's ranges, as pins."""
    pins = []
    for requirement in importlib.metadata.requires("official-bert") or []:
        name, bound = re.match(r"[\w.-]+", requirement), re.search(r">=([\d.]+)", requirement)
        extra = re.search(r"extra == [\"']([\w-]+)", requirement)
        if name and bound and (extra is None or extra[1] in extras):
            pins.append(f"{name[0]}=={bound[1]}")
    return pins


def check_commands() -> None:
    listed = re.findall(r"^  ([a-z][a-z-]*) +\S", run("official-bert", "--help"), re.MULTILINE)
    assert len(listed) > 12, listed
    for name in listed:
        assert f"official-bert {name} " in run("official-bert", name, "--help"), name
    assert "did you mean serve?" in run("official-bert", "sevre", code=1)


def check_plain(folder: str) -> None:
    assert "pip install 'official-bert[serve] @ file://" in run("official-bert", "serve", f"--model=a={folder}", code=1)
    learn = [
        "official-bert",
        "learn-vocabulary",
        "--input_file=text.txt",
        "--vocab_file=learned.txt",
        "--vocab_size=40",
    ]
    assert "pip install 'official-bert[data] @ file://" in run(*learn, code=1)
    run("python", "-c", WRITE_RECORDS)
    config = {"vocab_size": len(WORDS), "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
              "intermediate_size": 16, "max_position_embeddings": 32, "type_vocab_size": 2}  # fmt: skip
    pathlib.Path("config.json").write_text(json.dumps(config), encoding="utf-8")
    train = [*FLAGS, "--bert_config_file=config.json", "--do_train", "--train_batch_size=4", "--vocab_file=vocab.txt"]
    train += [
        "--num_train_steps=2",
        "--num_warmup_steps=1",
        "--output_dir=model",
    ]
    # A recipe of the installed configs, with a smaller model.
    said = run(
        "official-bert", "pretrain", "--flagfile=configs/cpu_10_minutes.flagfile", "--input_file=hand.tfrecord", *train
    )
    assert "the run is in model" in said
    assert "cat" in run("official-bert", "fill-mask", "--model_dir=model", "--top_k=18", "the [MASK] sat .")
    run("python", "-c", LOAD)


def check_data() -> None:
    run("official-bert", "learn-vocabulary", *LEARN)
    records = ["--input_file=text.txt", "--output_file=made.tfrecord", "--vocab_file=learned.txt", *FLAGS]
    run("official-bert", "make-records", *records)
    assert "errors 0" in run(
        "official-bert", "verify-records", "--input_file=made.tfrecord", "--vocab_file=learned.txt"
    )


def main() -> None:
    wheel = str(next(pathlib.Path(sys.argv[1]).resolve().glob("*.whl")))
    constraints: list[str] = []
    print(f"Python {sys.version.split()[0]}", flush=True)
    if "--lowest" in sys.argv:
        run("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", wheel)
        constraints = lowest({"tensorflow", "data"})
        print(f"  {' '.join(constraints)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        pathlib.Path("vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
        pathlib.Path("text.txt").write_text(TEXT, encoding="utf-8")
        plain = [each for each in constraints if not each.startswith(("tensorflow-text", "tokenizers", "google-crc32c",
                 "sentencex", "zstandard", "fsspec", "pyarrow"))]  # fmt: skip
        install(wheel, "", [each for each in plain if each.startswith(("absl-py", "numpy"))])
        check_commands()
        assert "pip install 'official-bert[tensorflow] @ file://" in run(
            "official-bert", "fill-mask", "--model_dir=m", "a", code=1
        )
        install(wheel, "tensorflow", plain)
        check_plain(folder)
        install(wheel, "data", constraints)
        check_data()
        os.chdir("/")
    print("  commands, pre-training, fill-mask, load, records: as expected", flush=True)


if __name__ == "__main__":
    main()
