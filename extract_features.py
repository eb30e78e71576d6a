"""Writes the encoder's vectors of texts, as `official-bert features` does: `python -m extract_features --help`."""

from official_bert.utils.signals import interruptible

if __name__ == "__main__":
    with interruptible():
        from official_bert.commands import FEATURES

        FEATURES.run_as_script()
