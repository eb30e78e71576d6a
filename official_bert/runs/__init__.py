"""What every long run shares: lock, description of the run, stop signal, log. Each command keeps its own loop.

Plain functions and small values:

- locks: one process at a time writes an output.
- run_file: the file that describes a run, and its comparison with a later start.
- stop_request: SIGTERM and Ctrl-C, answered after the steps in flight.
- training_run: the devices of a training run, lost checkpoints, and losses that are not finite.
- training_log: measurements as JSON lines and TensorBoard events.
"""
