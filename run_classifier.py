"""Fine-tunes BERT on sentences or pairs, with the original's flags and files: `python -m run_classifier --help`."""

from official_bert.utils.signals import exit_codes

if __name__ == "__main__":
    with exit_codes():
        from official_bert.commands import RUN_CLASSIFIER

        RUN_CLASSIFIER.run_as_script()
