"""Fine-tunes BERT on a task: `python -m run_finetuning --help`."""

from official_bert import command_line, finetuning, finetuning_sweep
from official_bert.finetuning_options import Options


def main(_: list[str]) -> None:
    options = command_line.read(Options)
    if finetuning_sweep.is_sweep(options):
        finetuning_sweep.run_sweep(options)
    else:
        finetuning.run(options)
    print(f"the run is in {options.output_dir}")


if __name__ == "__main__":
    command_line.define(Options)
    command_line.run(main)
