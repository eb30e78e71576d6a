"""Answers to a file of texts: `python -m batch_predict --export_dir=FOLDER --input_file=X --output_file=Y`."""

from official_bert.main import run_command

if __name__ == "__main__":
    run_command("predict")
