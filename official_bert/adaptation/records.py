"""Records of the texts, by the command that makes them for pre-training."""

import dataclasses
import math
import os

from data_gen.options import RecordOptions
from data_gen.pipelines import one_machine
from official_bert.adaptation import texts
from official_bert.adaptation.options import Options
from official_bert.adaptation.texts import Texts
from official_bert.data.sentence_objectives import NEXT_SENTENCE, NONE
from official_bert.tokenization.casing import Casing

_MOST_PASSES = 10  # as make-records makes by itself
_HELDOUT_PASSES = 3  # so that little text gives enough to predict


@dataclasses.dataclass(frozen=True)
class Records:
    """The files of records; None where there is no such text."""

    train: str | None
    heldout: str
    general: str | None


def passes(options: Options, tokens: float) -> int:
    """Returns how often the text, of so many tokens, is used: as often as the training reads it."""
    if options.dupe_factor is not None:
        return options.dupe_factor
    wanted = options.num_train_steps * options.train_batch_size * (options.max_seq_length - 3)
    return max(1, min(_MOST_PASSES, math.ceil(wanted / max(tokens, 1.0))))


def make(
    options: Options, facts: Texts, text_folder: str, vocab_file: str, casing: Casing, number: int, folder: str
) -> Records:
    """Makes records to train on, for which the text is used so many times (0 for none), and records to evaluate on.

    What is done is skipped, what is half done goes on.

    Raises:
        UserError: as of make-records.
    """

    def made(name: str, names: list[str], dupe_factor: int) -> str:
        output = os.path.join(folder, f"{name}.tfrecord")
        one_machine.create_pretraining_data(
            RecordOptions(
                input_file=[os.path.join(text_folder, each) for each in names],
                output_file=[output],
                vocab_file=vocab_file,
                **casing.settings,
                do_whole_word_mask=options.do_whole_word_mask,
                word_boundaries=options.word_boundaries,
                max_seq_length=options.max_seq_length,
                max_predictions_per_seq=options.max_predictions_per_seq,
                masked_lm_prob=options.masked_lm_prob,
                random_seed=options.random_seed,
                dupe_factor=dupe_factor,
                sentence_objective=NEXT_SENTENCE if facts.pairs else NONE,
                input_format="sentences",
            )
        )
        return output

    trained_on = [texts.DOMAIN, *([texts.GENERAL] if facts.general_share else [])]
    return Records(
        train=made("train", trained_on, number) if number else None,
        heldout=made("heldout", [texts.HELDOUT], _HELDOUT_PASSES),
        general=made("general", [texts.GENERAL_HELDOUT], _HELDOUT_PASSES) if facts.general_heldout_characters else None,
    )
