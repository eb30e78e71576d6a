"""Exports a model that takes text: `python -m export_saved_model --model_dir=FOLDER --export_dir=FOLDER`."""

from official_bert.main import run_command

if __name__ == "__main__":
    run_command("export")
