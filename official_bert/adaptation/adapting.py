"""Adapts a model to the user's own text (the domain), in stages that can be stopped and resumed at any time.

The stages store their results in the folder `adaptation` of the output folder. Each file or folder is written
atomically:

1. Words and weights: `texts` contains the training and held-out text and the options. `words.json` contains the new
   words. `initial` contains the initial model, with new words and heads. `original` contains the model without new
   words, for comparison, if there are new words.
2. Records: `records` contains records that are made like those for pre-training.
3. Training: a pre-training run in the output folder, and `original_losses.json`.

When adapt.json is written, the adaptation is complete. The held-out texts and the options are kept, and everything else
in the folder `adaptation` is removed.
"""

import contextlib
import json
import os
from collections.abc import Sequence
from typing import Any

from data_gen.text import word_boundaries
from official_bert.adaptation import records, training, words
from official_bert.adaptation.options import AdaptationOptions
from official_bert.adaptation.training import RESULT_FILE, Adaptation
from official_bert.checkpoints import resize
from official_bert.checkpoints.checkpoint import CONFIG_FILE
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.runs import run_file
from official_bert.runs.locks import lock_folder
from official_bert.utils import files, row_files
from official_bert.utils.flags import convert_arguments

_WORK = "adaptation"
_OPTIONS_FILE, _CONTENTS_FILE = "options.json", "contents.json"  # In the folder of texts.


def adapt(init: str, input_file: str | Sequence[str], output_dir: str, **options: Any) -> Adaptation:
    """Continues the pre-training of a model on your own text, and measures the losses before and after.

    Call it again with the same arguments to resume after a stop.

    Args:
        init: The model to start from: a checkpoint of any format, or a name (hf://, google://).
        input_file: Text files or glob patterns: the text to adapt to.
        output_dir: Folder to write the adapted model to. It can be used wherever a checkpoint is expected.
        **options: Other flags of `official-bert adapt`, by name, such as new_words=300 or general_file=["wiki.txt"].

    Returns:
        Losses before and after the training, tokens per word, and the new words, as in adapt.json.

    Raises:
        UserError: If an input is missing or damaged, or the options contradict each other.
    """
    options |= {"init": init, "input_file": input_file, "output_dir": output_dir}
    if run(AdaptationOptions(**convert_arguments("adapt", AdaptationOptions, options))):
        raise KeyboardInterrupt(f"stopped; repeat the call to resume in {output_dir}")
    return Adaptation.read(output_dir)


def run(options: AdaptationOptions) -> int:
    """Continues pre-training of a model on text of another domain, and writes the adapted model and a report.

    Returns:
        The exit code of the process, which is not 0 if a signal stopped the training.

    Raises:
        UserError: If an input is missing or damaged, or the options contradict each other. In this case no files are
            written.
    """
    work = os.path.join(options.output_dir, _WORK)
    try:
        with lock_folder(work, "output_dir"):
            _check_folder(options, work)
            if files.exists(os.path.join(options.output_dir, RESULT_FILE)):
                print("this adaptation is already complete")
            else:
                if code := _run_stages(options, work):
                    return code
                training.write_result(options, work)
            for name in (words.INITIAL, words.ORIGINAL, records.RECORDS):
                files.remove_folder(os.path.join(work, name))
            for name in (records.DOMAIN, records.GENERAL):
                files.remove(os.path.join(work, records.TEXTS, name))
            print(Adaptation.read(options.output_dir))
            return 0
    finally:
        with contextlib.suppress(OSError):  # The folder is not empty.
            os.rmdir(options.output_dir)


def _check_folder(options: AdaptationOptions, work: str) -> None:
    """Raises a UserError if the output folder contains other files, or an adaptation with other options or texts.

    Args:
        options: The options of adapt.
        work: The working folder, `adaptation` in the output folder.
    """
    started = os.path.join(work, records.TEXTS, _OPTIONS_FILE)
    if not files.exists(started):
        if unexpected := sorted(set(os.listdir(options.output_dir)) - {_WORK}):
            raise UserError(
                f"{options.output_dir} contains other files ({unexpected[0]}); pass a new or empty --output_dir"
            )
        return
    changes = run_file.find_changes(run_file.read_run_file(started), run_file.locked_values(options))
    run_file.refuse_changes(options.output_dir, changes, "Pass the same options, or another --output_dir.")
    contents = files.read_json_object(os.path.join(work, records.TEXTS, _CONTENTS_FILE))
    for flag, patterns in options.text_files.items():
        row_files.check_unchanged(contents[flag], patterns, flag)


def _run_stages(options: AdaptationOptions, work: str) -> int:
    """Runs the stages that have not been completed yet. Returns the process's exit code."""
    initial = os.path.join(work, words.INITIAL)
    if not files.exists(initial):
        _prepare(options, work)
    options = options.resolve_defaults(BertConfig.from_json_file(os.path.join(initial, CONFIG_FILE)))
    facts = files.read_json_object(os.path.join(work, words.WORDS_FILE))
    passes = records.count_passes(options, facts["tokens"], records.read_texts(work).general_share)
    print(
        f"{options.num_train_steps:,} steps (--num_train_steps) of {options.train_batch_size} records "
        f"(--train_batch_size), learning rate up to {options.learning_rate:.2g} (--learning_rate), "
        f"{options.num_warmup_steps:,} warm-up steps (--num_warmup_steps), {passes} passes over the text "
        "(--dupe_factor)",
        flush=True,
    )
    if facts["new_words"] and not files.exists(os.path.join(work, training.LOSSES_FILE)):
        training.write_original_losses(options, work)
    return training.train(options, work, passes)


def _prepare(options: AdaptationOptions, work: str) -> None:
    """Runs the first stage: prepares the texts and the initial model. Checks all options before it reads text."""
    checkpoint, lines = words.read_checkpoint(options)
    options.resolve_defaults(checkpoint.config)
    new_words: list[str] = []
    if options.new_words_file:
        _, new_words, _ = resize.add_tokens_from_file(checkpoint, options.new_words_file, words.NEW_WORD_ROWS)
    word_boundaries.load(options.word_boundaries)
    print("\n".join(lines), flush=True)
    folder = os.path.join(work, records.TEXTS)
    if not files.exists(folder):
        with files.write_folder_atomically(folder) as temporary:
            records.prepare_texts(options, temporary)
            contents = {
                flag: row_files.fingerprint(row_files.expand(patterns, flag))
                for flag, patterns in options.text_files.items()
            }
            files.write_text(os.path.join(temporary, _CONTENTS_FILE), json.dumps(contents))
            run_file.write_run_file(os.path.join(temporary, _OPTIONS_FILE), run_file.locked_values(options))
    words.make_initial_model(options, checkpoint, new_words, work)
