"""Serves SavedModels over HTTP: `python -m serve --model=NAME=FOLDER`, then http://127.0.0.1:8501."""

from official_bert import command_line

# isort: split
from official_bert.serving import server
from official_bert.serving.options import Options


def main(_: list[str]) -> None:
    server.serve(command_line.read(Options))


if __name__ == "__main__":
    command_line.define(Options)
    command_line.run(main)
