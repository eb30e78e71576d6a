"""Checks TFRecord files, each byte of them: `python -m data_gen.verify_records --help`."""

from official_bert.main import run_command

if __name__ == "__main__":
    run_command("verify-records")
