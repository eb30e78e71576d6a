"""Pre-training from beginning to end: set-up, weights, the loop over steps, evaluation, model card."""

import os

from official_bert.checkpoints.model_files import write_contents
from official_bert.pretraining.evaluation import HeldOutEvaluation
from official_bert.pretraining.model_card import write_model_card
from official_bert.pretraining.monitor import Monitor
from official_bert.pretraining.options import Options
from official_bert.pretraining.run_metadata import read_run_metadata, write_run_metadata
from official_bert.pretraining.run_setup import RunSetup, restore_or_initialize, set_up
from official_bert.pretraining.training_loop import TrainingLoop
from official_bert.runs.training_log import TrainingLog
from official_bert.runs.training_run import open_training_run
from official_bert.utils.counting import counted


def run(options: Options) -> int:
    """Trains, evaluates or both, as the options say; returns the process's exit code.

    The code is 0 when all is done, and 128 plus the signal's number when SIGTERM or Ctrl-C stopped training, which
    saves first.

    Raises:
        UserError: an option, a file or the output folder is wrong; what was saved stays as it is.
    """
    with open_training_run(options) as strategy:
        return _run(set_up(options, strategy))


def _run(setup: RunSetup) -> int:
    options = setup.options
    restore_or_initialize(setup)
    if setup.is_chief:
        if options.do_train and not setup.resumed_from:
            setup.checkpoints.remove_all()  # that cannot be read: see --begin_anew
        write_contents(setup.folder, setup.model_files)
        # Changed options are written down by the loop, once a step was taken with them.
        if options.do_train and not (setup.resumed_from and setup.changes):
            setup.write_metadata()
    first_step = setup.pretrainer.step if options.do_train else None
    log = TrainingLog(setup.folder if setup.is_chief else None, first_step)
    evaluation = HeldOutEvaluation(setup, log)
    if options.do_train and (exit_code := _train(setup, log, evaluation)):
        return exit_code
    if options.do_eval:
        evaluation.at_the_end()
    if setup.is_chief:
        _write_model_card(setup)
    return 0


def _train(setup: RunSetup, log: TrainingLog, evaluation: HeldOutEvaluation) -> int:
    """Trains up to the last step; returns the exit code, which is not 0 if a signal stopped it."""
    step, total_steps = setup.pretrainer.step, setup.options.total_steps
    if setup.resumed_from:
        log.note(step, f"went on from {os.path.basename(setup.resumed_from)}")
    if setup.is_chief:
        setup.checkpoints.remove_unfinished()
    if step >= total_steps:
        print(f"nothing to do: {counted(total_steps, 'step')} of {total_steps:,} done already")
        return 0
    return TrainingLoop(setup, log, Monitor(setup, log), evaluation).run()


def _write_model_card(setup: RunSetup) -> None:
    """Writes the model card, and run.json with the evaluation records."""
    metadata = setup.metadata
    if not setup.options.do_train:  # after an evaluation alone, what is kept of the training stays
        kept, evaluated = read_run_metadata(setup.folder), metadata["evaluation_data"]
        metadata = {**metadata, **kept, "evaluation_data": evaluated}
    write_run_metadata(setup.folder, metadata)
    print(f"model card: {write_model_card(setup.folder, metadata)}")
