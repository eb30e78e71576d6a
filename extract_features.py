"""Writes the vectors of texts: `python -m extract_features --init=model --input_file=a.txt --output_file=a.npy`."""

from official_bert.main import run_command

if __name__ == "__main__":
    run_command("features")
