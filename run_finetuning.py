"""Fine-tunes BERT on a task: `python -m run_finetuning --help`."""

import sys

from official_bert import command_line

# isort: split
import extract_features
from official_bert import finetuning, finetuning_sweep
from official_bert.finetuning_options import Options

_FEATURES = "--task=features"  # no task to learn, so that its flags are others: those of extract_features


def main(_: list[str]) -> None:
    options = command_line.read(Options)
    if finetuning_sweep.is_sweep(options):
        finetuning_sweep.run_sweep(options)
    else:
        finetuning.run(options)
    print(f"the run is in {options.output_dir}")


if __name__ == "__main__":
    if _FEATURES in sys.argv:
        sys.argv.remove(_FEATURES)
        command_line.define(extract_features.Options)
        command_line.run(extract_features.main)
    else:
        command_line.define(Options)
        command_line.run(main)
