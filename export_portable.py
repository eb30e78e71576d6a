"""Exports a model for LiteRT or ONNX: `python -m export_portable --model_dir=X --eval_file=Y --output_dir=Z`."""

from official_bert import command_line

# isort: split
from official_bert import portable_export


def main(_: list[str]) -> None:
    print(portable_export.export(command_line.read(portable_export.Options)))


if __name__ == "__main__":
    command_line.define(portable_export.Options)
    command_line.run(main)
