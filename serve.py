"""Serves SavedModels over HTTP: `python -m serve --model=NAME=FOLDER`, then http://127.0.0.1:8501."""

from official_bert.main import run_command

if __name__ == "__main__":
    run_command("serve")
