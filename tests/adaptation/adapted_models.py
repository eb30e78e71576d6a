"""Text, weights and options of small adaptations."""

import pathlib
import random
from typing import Any

from official_bert.adaptation.options import AdaptationOptions
from tests import make

# The last three words are not in the vocabulary.
_WORDS = "the cat dog sat ran on mat in sun play walk and running catdog sunny".split()
LENGTH, PREDICTIONS = 16, 3
STEPS = {"train_batch_size": 8, "learning_rate": 1e-2, "num_train_steps": 4, "eval_steps": 2, "log_steps": 2}


def write_text(path: pathlib.Path, documents: int = 40, sentences: int = 4, seed: int = 0) -> str:
    """Writes documents whose sentences are drawn from these words, and returns the path."""
    rng = random.Random(seed)
    lines = ["".join(" ".join(rng.choices(_WORDS, k=7)) + " .\n" for _ in range(sentences)) for _ in range(documents)]
    return make.write_text(path, "\n".join(lines))


def make_options(source: pathlib.Path, text: str, folder: pathlib.Path, **changes: Any) -> AdaptationOptions:
    values: dict[str, Any] = {"max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS, "heldout_share": 0.2}
    paths: dict[str, Any] = {"init": str(source), "input_file": [text], "output_dir": str(folder)}
    return AdaptationOptions(**values | STEPS | paths | changes)
