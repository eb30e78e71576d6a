"""A pipeline on Apache Beam: the runner that the user's options name, and errors of workers as one line.

Beam's runners show a worker's error as a traceback, on Dataflow in the log of a machine. So a worker writes a user's
error to a file that all machines reach, and the process that started the job shows it.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from official_bert.errors import UserError
from official_bert.utils import files


def import_beam() -> None:
    """Imports Apache Beam without its remarks on optional packages that are not there."""
    logging.disable(logging.WARNING)
    try:
        import apache_beam  # noqa: F401
    finally:
        logging.disable(logging.NOTSET)


@contextlib.contextmanager
def reporting_errors(path: str) -> Iterator[None]:
    """For a worker: writes a user's error, or that of a file system, to the file `path` and raises it."""
    try:
        yield
    except (UserError, OSError) as error:
        message = str(error) if isinstance(error, UserError) else f"a worker could not read or write: {error}"
        with contextlib.suppress(UserError):
            files.write_text(path, message)
        raise UserError(message) from error


def run_pipeline(build: Callable[[Any], None], arguments: list[str], error_file: str) -> None:
    """Runs a pipeline and waits until it is done.

    Args:
        build: adds the steps to a beam.Pipeline.
        arguments: Beam's pipeline options, such as "--runner=DataflowRunner"; its DirectRunner unless they name one.
        error_file: where workers write their errors (`reporting_errors`).

    Raises:
        UserError: Beam refuses its options, a worker reported an error, or the job did not end well.
    """
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
    from apache_beam.pipeline import Pipeline
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner
    from apache_beam.runners.runner import PipelineState

    options = PipelineOptions(arguments)
    runner = options.view_as(StandardOptions).runner
    if runner in (None, "DirectRunner"):
        unknown = options.get_all_options(retain_unknown_options=True).keys() - options.get_all_options().keys()
        if unknown:  # other runners may know them
            raise UserError(f"Beam's DirectRunner has no option --{' and no --'.join(sorted(unknown))}")
        # Beam's own choice for this name would first try to download a program.
        runner = FnApiRunner()
        logging.getLogger("apache_beam.runners.common").addFilter(_is_a_defect)
    try:
        pipeline = Pipeline(runner=runner, options=options)
    except (ValueError, ImportError) as error:
        raise UserError(f"Beam refuses its options: {' '.join(str(error).split())}") from error
    build(pipeline)
    try:
        result = pipeline.run()
        try:
            state = result.wait_until_finish()
        except KeyboardInterrupt:
            result.cancel()  # it would go on
            raise
        if state not in (None, PipelineState.DONE):
            raise UserError(f"the job on Beam ended in the state {state}; see the runner's own log")
    except Exception as error:
        if files.exists(error_file):
            raise UserError(files.read_text(error_file)) from error
        raise


def _is_a_defect(record: logging.LogRecord) -> bool:
    """Whether an error should be logged with its traceback; others are shown as one line at the end."""
    return not (record.exc_info and isinstance(record.exc_info[1], UserError))
