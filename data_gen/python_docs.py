"""English prose that every Python installation carries: `python -m data_gen.python_docs --help`."""

from official_bert.main import run_command

if __name__ == "__main__":
    run_command("python-docs")
