"""Text to TFRecords for pre-training: `python -m data_gen.create_pretraining_data --help`."""

from official_bert import command_line
from data_gen import pipeline


def main(_: list[str]) -> None:
    options = command_line.read(pipeline.Options)
    print(pipeline.create_pretraining_data(options))
    print(pipeline.where(options))


if __name__ == "__main__":
    command_line.define(pipeline.Options)
    command_line.run(main)
