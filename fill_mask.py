"""Fills in [MASK]: `python -m fill_mask --model_dir=FOLDER "the capital of france is [MASK] ."`."""

from official_bert.main import run_command

if __name__ == "__main__":
    run_command("fill-mask")
