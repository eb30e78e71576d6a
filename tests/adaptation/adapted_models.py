"""Text, weights and options of small adaptations."""

import pathlib
import random

from official_bert.adaptation.options import Options

# The last three words are not in the vocabulary.
_WORDS = "the cat dog sat ran on mat in sun play walk and running catdog sunny".split()
LENGTH, PREDICTIONS = 16, 3


def write_text(path: pathlib.Path, documents: int = 40, sentences: int = 4, seed: int = 0) -> str:
    """Writes documents whose sentences are drawn from these words, and returns the path."""
    rng = random.Random(seed)
    text = "\n".join(
        "".join(" ".join(rng.choices(_WORDS, k=7)) + " .\n" for _ in range(sentences)) for _ in range(documents)
    )
    path.write_text(text)
    return str(path)


def make_options(init_folder: pathlib.Path, text: str, folder: pathlib.Path, **changes: object) -> Options:
    values = {
        "init": str(init_folder),
        "input_file": [text],
        "output_dir": str(folder),
        "heldout_share": 0.2,
        "max_seq_length": LENGTH,
        "max_predictions_per_seq": PREDICTIONS,
        "train_batch_size": 8,
        "learning_rate": 1e-2,
        "num_train_steps": 4,
        "eval_steps": 2,
        "log_steps": 2,
        **changes,
    }
    return Options(**values)  # type: ignore[arg-type]
