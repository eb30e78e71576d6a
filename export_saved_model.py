"""Exports a model that takes text: `python -m export_saved_model --model_dir=FOLDER --export_dir=FOLDER`."""

from official_bert import command_line

# isort: split
from official_bert import export


def main(_: list[str]) -> None:
    print(f"written {export.export(command_line.read(export.Options))}")


if __name__ == "__main__":
    command_line.define(export.Options)
    command_line.run(main)
