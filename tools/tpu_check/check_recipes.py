"""Runs the check of the TPU recipes in configs/: `make tpu-check-recipes`."""

import os

# Set before TensorFlow is imported: its TPU build would wait for a server that only TPU hosts have.
os.environ["TPU_LIBRARY_PATH"] = os.devnull

from official_bert.utils.command_line import Command
from tools.tpu_check import recipes

if __name__ == "__main__":
    Command(
        program="python -m tools.tpu_check.check_recipes",
        summary="Compiles the steps of the TPU recipes in configs/.",
        main=recipes.run,
        options=(recipes.Options,),
    ).run()
