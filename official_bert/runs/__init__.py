"""Shared by all long runs: the lock, the description of the run, the stop signal and the log.

Plain functions and small values:

- locks: one process at a time writes an output.
- run_file: the file that describes a run, and its comparison with a later start.
- stop_request: SIGTERM and Ctrl-C, which stop a run after the current steps.
- training_run: the devices of a training run, lost checkpoints, and losses that are not finite.
- training_log: measurements as JSON lines and TensorBoard events.
"""
