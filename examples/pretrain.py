"""Pre-trains a small BERT on your own text: `python examples/pretrain.py text.txt`.

The text has a paragraph on each line and an empty line between documents. Everything goes into the folder `pretrained`;
run it again, and it continues where it was. For real use raise the sizes and the number of steps.
"""

import json
import pathlib
import subprocess
import sys

OUT = pathlib.Path("pretrained")
CONFIG = {"vocab_size": 1000, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
          "intermediate_size": 64, "max_position_embeddings": 64}  # fmt: skip
LENGTHS = ("--max_seq_length=64", "--max_predictions_per_seq=10")


def run(*command: str) -> None:
    subprocess.run(["official-bert", *command], check=True)


text, vocab, records = f"--input_file={sys.argv[1]}", f"--vocab_file={OUT}/vocab.txt", f"{OUT}/records.tfrecord"
OUT.mkdir(exist_ok=True)
(OUT / "config.json").write_text(json.dumps(CONFIG))
run("learn-vocabulary", text, vocab, "--vocab_size=1000")
run("make-records", text, "--input_format=paragraphs", vocab, f"--output_file={records}", *LENGTHS)
run("pretrain", "--do_train", f"--input_file={records}", vocab, f"--bert_config_file={OUT}/config.json",
    f"--output_dir={OUT}/model", "--num_train_steps=60", "--num_warmup_steps=10", "--learning_rate=1e-3",
    *LENGTHS)  # fmt: skip
run("fill-mask", f"--model_dir={OUT}/model", "the [MASK] of a record .")
