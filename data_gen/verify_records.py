"""Checks TFRecord files, each byte of them: `python -m data_gen.verify_records --help`."""

import sys

from official_bert import command_line
from data_gen import verification


def main(_: list[str]) -> int:
    findings = verification.verify(command_line.read(verification.Options))
    for note in findings.notes:
        print(f"note: {note}")
    for checked in [] if findings.problems else findings.checked:
        print(f"checked: {checked}")
    for problem in findings.problems:
        print(f"error: {problem}", file=sys.stderr)
    print(f"files {findings.files}, records read {findings.records:,}, errors {len(findings.problems)}")
    return 1 if findings.problems else 0


if __name__ == "__main__":
    command_line.define(verification.Options)
    command_line.run(main)
