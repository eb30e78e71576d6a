"""Compiles training steps for a TPU without a TPU: `make tpu-check CHECK='--help'`."""

import os

# Set before TensorFlow is imported: its TPU build would wait for a server that only TPU hosts have.
os.environ["TPU_LIBRARY_PATH"] = os.devnull

from typing import Any

from official_bert.utils.command_line import Command
from tools.tpu_check.options import REFUSED, Options, make_variants


def _run_check(*options: Any) -> int:
    from tools.tpu_check import command  # Imports TensorFlow.

    return command.run(*options)


if __name__ == "__main__":
    Command(
        program="python -m tools.tpu_check",
        summary="Compiles the steps of pre-training or fine-tuning for a TPU, without a TPU.",
        main=_run_check,
        options=(Options,),
        chooser="task",
        variants=make_variants(),
        refused=REFUSED,
        examples=(
            "--bert_config_file=configs/models/uncased_L-12_H-768_A-12.json --train_batch_size=512 --dtype=bfloat16",
            "--bert_config_file=configs/models/uncased_L-24_H-1024_A-16.json --topology=v3:2x2 --nofind_largest_batch",
            "--task=squad --init=configs/models/uncased_L-12_H-768_A-12.json --dtype=bfloat16 --eval_batch_size=256",
        ),
    ).run()
