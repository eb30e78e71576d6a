"""Fills in [MASK]: `python -m fill_mask --model_dir=FOLDER "the capital of france is [MASK] ."`."""

import dataclasses

from official_bert import command_line

# isort: split
from official_bert import checkpoints
from official_bert import fill_mask as answers
from official_bert.command_line import option
from official_bert.errors import UserError


@dataclasses.dataclass(frozen=True)
class Options:
    """What fill_mask is told."""

    model_dir: str = option(dataclasses.MISSING, "The --output_dir of run_pretraining.")
    top_k: int = option(5, "How many candidates to print.")


def main(texts: list[str]) -> None:
    options = command_line.read(Options)
    if not texts:
        raise UserError('no text was given; add one, in quotes: "the capital of france is [MASK] ."')
    model, config, tokenizer = checkpoints.load_pretraining_model(options.model_dir)
    for text in texts:
        print(text)
        for candidates in answers.fill_mask(model, tokenizer, config, text, options.top_k):
            for candidate in candidates:
                print(f"  {100 * candidate.probability:5.1f} %  {candidate.token}")
            print()


if __name__ == "__main__":
    command_line.define(Options)
    command_line.run(main, positional="texts with [MASK]")
