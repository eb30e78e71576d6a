"""Writes the encoder's vectors of texts, as `official-bert features` does: `python -m extract_features --help`."""

from official_bert.utils.signals import exit_on_interrupt

if __name__ == "__main__":
    with exit_on_interrupt():
        from official_bert.commands import FEATURES

        FEATURES.run_as_script()
