"""create_pretraining_data on Apache Beam: `python -m data_gen.create_pretraining_data_beam --help`."""

from official_bert.main import run_command

if __name__ == "__main__":
    run_command("make-records-beam")
