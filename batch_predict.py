"""Answers to a file of texts: `python -m batch_predict --export_dir=FOLDER --input_file=X --output_file=Y`."""

from official_bert import command_line

# isort: split
from official_bert import batch_prediction


def main(_: list[str]) -> None:
    print(batch_prediction.predict(command_line.read(batch_prediction.Options)))


if __name__ == "__main__":
    command_line.define(batch_prediction.Options)
    command_line.run(main)
