"""Learns a WordPiece vocabulary from text: `python -m data_gen.learn_vocabulary --help`."""

from official_bert.main import run_command

if __name__ == "__main__":
    run_command("learn-vocabulary")
