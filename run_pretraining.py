"""Pre-trains BERT on TFRecord files, as `official-bert pretrain` does: `python -m run_pretraining --help`."""

from official_bert.utils.signals import exit_codes

if __name__ == "__main__":
    with exit_codes():
        from official_bert.commands import PRETRAIN

        PRETRAIN.run_as_script()
