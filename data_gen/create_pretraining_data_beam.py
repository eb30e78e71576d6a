"""create_pretraining_data on Apache Beam, on many machines: `python -m data_gen.create_pretraining_data_beam --help`.

Beam's own options come behind a double dash: `... --output_file=gs://bucket/0.tfrecord -- --runner=DataflowRunner ...`
"""

import logging

from official_bert import command_line
from data_gen import pipeline
from official_bert.errors import UserError


def main(beam_arguments: list[str]) -> None:
    options = command_line.read(pipeline.Options)
    logging.disable(logging.WARNING)  # Beam tells of optional packages that are not there
    try:
        from data_gen import beam_pipeline
    except ModuleNotFoundError as error:
        if error.name != "apache_beam":
            raise
        raise UserError("Apache Beam is not installed; run: pip install -r requirements-beam.txt") from error
    finally:
        logging.disable(logging.NOTSET)
    print(beam_pipeline.create_pretraining_data(options, beam_arguments))
    print(pipeline.where(options))


if __name__ == "__main__":
    command_line.define(pipeline.Options)
    command_line.run(main, positional="Beam's options")
