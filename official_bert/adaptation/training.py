"""The training of an adaptation: a run of pre-training from the initial weights, and evaluations beside it."""

import os

from official_bert.adaptation.options import Options
from official_bert.adaptation.records import Records
from official_bert.adaptation.texts import Texts
from official_bert.checkpoints.checkpoint import CONFIG_FILE, VOCAB_FILE
from official_bert.checkpoints.loading import assign_weights, open_model
from official_bert.optimization import distribution
from official_bert.pretraining.evaluation import evaluate
from official_bert.pretraining.options import Options as PretrainingOptions
from official_bert.pretraining.run import pretrain, set_up

_EVALUATED, _KEPT = 1600, 2  # records an evaluation, and checkpoints


def train(options: Options, facts: Texts, records: Records, model_folder: str) -> int:
    """Trains into the output folder, from the weights of a folder; returns the process's exit code (see pretrain).

    Raises:
        UserError: as of pre-training.
    """
    return pretrain(
        _options(
            options,
            facts,
            records,
            model_folder,
            output_dir=options.output_dir,
            do_train=True,
            eval_steps=options.eval_steps,
            input_file=[records.train],
            allow_changes=["init_checkpoint"],  # it is in the folder, which may have been moved
        )
    )


def losses(options: Options, facts: Texts, records: Records, model_folder: str, folder: str) -> dict[str, float]:
    """Returns the masked-LM losses of a folder's weights on the held-out records: heldout and, if it is there, general.

    Nothing is written; `folder` is one that holds no run.
    """
    settings = _options(
        options, facts, records, model_folder, output_dir=folder, do_eval=True, input_file=[records.heldout]
    )
    setup = set_up(settings, distribution.get_strategy(settings.strategy))
    assign_weights(setup.pretrainer.model, open_model(model_folder).weights)
    found = {"heldout": setup.records.held_out, "general": setup.records.general}
    losses = {}
    for name, files_of in found.items():
        if files_of:
            result = evaluate(
                setup.pretrainer, files_of, settings.eval_batch_size, settings.max_eval_steps, lambda: False
            )
            assert result is not None
            losses[name] = result[0]["masked_lm_loss"]
    return losses


def _options(
    options: Options, facts: Texts, records: Records, model_folder: str, **changes: object
) -> PretrainingOptions:
    batch_size = options.train_batch_size
    values = {
        "bert_config_file": os.path.join(model_folder, CONFIG_FILE),
        "vocab_file": os.path.join(model_folder, VOCAB_FILE),
        "init_checkpoint": model_folder,
        "eval_input_file": [records.heldout],
        "general_eval_file": [records.general] if records.general else [],
        "max_eval_steps": max(1, _EVALUATED // batch_size),
        "eval_batch_size": batch_size,
        "next_sentence_prediction": facts.pairs,
        "max_seq_length": options.max_seq_length,
        "max_predictions_per_seq": options.max_predictions_per_seq,
        "train_batch_size": batch_size,
        "learning_rate": options.learning_rate,
        "num_train_steps": options.num_train_steps,
        "num_warmup_steps": options.num_warmup_steps,
        "gradient_accumulation_steps": options.gradient_accumulation_steps,
        "random_seed": options.random_seed,
        "save_checkpoints_steps": options.save_checkpoints_steps,
        "keep_checkpoint_max": _KEPT,
        "log_steps": options.log_steps,
        "distribution_strategy": options.distribution_strategy,
        "dtype": options.dtype,
        **changes,
    }
    return PretrainingOptions(**values)  # type: ignore[arg-type]
