"""Fine-tunes BERT on SQuAD, with the original's flags and files: `python -m run_squad --help`."""

from official_bert.utils.signals import exit_codes

if __name__ == "__main__":
    with exit_codes():
        from official_bert.commands import RUN_SQUAD

        RUN_SQUAD.run_as_script()
