"""Converts checkpoints between formats: `python -m convert_checkpoint --help`."""

from official_bert import command_line

# isort: split
from official_bert import conversion


def main(_: list[str]) -> None:
    for line in conversion.convert(command_line.read(conversion.Options)):
        print(line)


if __name__ == "__main__":
    command_line.define(conversion.Options)
    command_line.run(main)
