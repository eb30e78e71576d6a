"""Pre-trains BERT on TFRecord files: `python -m run_pretraining --help`."""

from official_bert.main import run_command

if __name__ == "__main__":
    run_command("pretrain")
