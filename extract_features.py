"""Writes the encoder's vectors of texts, as `official-bert features` does: `python -m extract_features --help`."""

from official_bert.utils.signals import exit_codes

if __name__ == "__main__":
    with exit_codes():
        from official_bert.commands import FEATURES

        FEATURES.run_as_script()
