"""Shows TFRecord files readably, with statistics: `python -m data_gen.inspect_records --help`."""

from official_bert.main import run_command

if __name__ == "__main__":
    run_command("inspect-records")
