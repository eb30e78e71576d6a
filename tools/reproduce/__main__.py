"""The command: `python -m tools.reproduce --table=5 --scale=tiny --input_file=... --data_dir=... --output_dir=...`."""

import os

from official_bert.utils import files
from official_bert.utils.command_line import Command
from tools.reproduce.page import page
from tools.reproduce.runs import Experiment, Options, perform


def main(options: Options) -> None:
    """Runs what is not done yet, and writes the table's page."""
    experiment = Experiment(options)
    for line in experiment.missing:
        print(f"left out: {line}", flush=True)
    runs = experiment.runs()
    if options.dry_run:
        print("\n".join(run.line() for run in runs))
        return
    vocabulary, *others = runs
    perform([vocabulary])
    experiment.write_configs()
    perform(others, options.processes)
    scores = {
        (variant.name, column): [experiment.score(variant, column, seed) for seed in options.random_seeds]
        for variant in experiment.table.variants
        for column in experiment.columns
    }
    settings = [["row", "layers", "hidden size", "heads"]]
    for variant in experiment.table.variants:
        shape = experiment.shape(variant)
        settings.append([variant.name, str(shape.layers), str(shape.hidden), str(shape.heads)])
    commands = [run.line() for run in runs]
    html = page(
        experiment.table, experiment.columns, scores, options.scale, settings, experiment.missing, commands,
        experiment.losses(),
    )  # fmt: skip
    path = os.path.join(
        options.output_dir, f"table_{options.table}_{options.scale}.html".replace("table_figure", "figure_")
    )
    files.write_text(path, html)
    print(f"the paper's figures and ours: {path}")


if __name__ == "__main__":
    summary = "The paper's experiments, table by table, by the ordinary commands; skips what is done."
    Command(program="python -m tools.reproduce", summary=summary, main=main, options=(Options,), tensorflow=False).run()
