"""The command that reproduces a table of the paper: `python -m tools.reproduce --table=5 --scale=tiny ...`."""

import os

from official_bert.utils import files
from official_bert.utils.command_line import Command
from tools.reproduce.experiment import Experiment, Options
from tools.reproduce.page import write_page
from tools.reproduce.runs import perform


def main(options: Options) -> None:
    """Runs the commands of a table that have not been run yet, and writes the page with the results."""
    experiment = Experiment(options)
    for line in experiment.missing:
        print(f"left out: {line}", flush=True)
    runs = experiment.runs()
    if options.dry_run:
        print("\n".join(run.line() for run in runs))
        return
    perform(runs[:1])  # the vocabulary, whose size the configurations contain
    experiment.write_configs()
    perform(runs[1:])
    scores = {
        (variant.name, column): [experiment.score(variant, column, seed) for seed in options.random_seeds]
        for variant in experiment.table.variants
        for column in experiment.columns
    }
    path = os.path.join(options.output_dir, f"table_{options.table}_{options.scale}.md")
    files.write_text(path, write_page(experiment, scores))
    print(f"Wrote the scores of the paper and of these runs to {path}")


if __name__ == "__main__":
    summary = "Reproduces a table of the BERT paper with the ordinary commands; skips commands that are done."
    Command(program="python -m tools.reproduce", summary=summary, main=main, options=(Options,), tensorflow=False).run()
