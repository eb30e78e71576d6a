"""Compiles the pre-training step for a TPU that is not there: `make tpu-check CHECK='--helpshort'`."""

import os

# Before TensorFlow is imported: its TPU build would look for a TPU, and wait for a server that only TPU hosts have.
os.environ["TPU_LIBRARY_PATH"] = os.devnull

from official_bert import command_line
from tpu_check import command


def main(_: list[str]) -> int:
    return command.run(command_line.read(command.Options))


if __name__ == "__main__":
    command_line.define(command.Options)
    command_line.run(main)
