"""Runs `official-bert make-records` under the name that it has in google-research/bert.

Both `python -m data_gen.create_pretraining_data --help` and `python data_gen/create_pretraining_data.py --help` work.
"""

import os
import sys

if __name__ == "__main__":
    if not __package__:  # run as a file, whose own folder Python searches for modules
        sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

    from official_bert.utils.signals import exit_codes

    with exit_codes():
        from data_gen.commands import MAKE_RECORDS

        MAKE_RECORDS.run_as_script()
