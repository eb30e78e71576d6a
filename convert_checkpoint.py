"""Converts checkpoints between formats: `python -m convert_checkpoint --help`."""

from official_bert.main import run_command

if __name__ == "__main__":
    run_command("convert")
