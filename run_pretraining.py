"""Pre-trains BERT on TFRecord files: `python -m run_pretraining --help`."""

from official_bert import command_line, training


def main(_: list[str]) -> int:
    options = command_line.read(training.Options)
    code = training.run(options)
    if code == 0:
        print(f"the run is in {options.output_dir}")
    return code


if __name__ == "__main__":
    command_line.define(training.Options)
    command_line.run(main)
