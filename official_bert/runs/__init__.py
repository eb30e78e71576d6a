"""What all long runs share: the lock, the description of the run, the stop signal and the log.

The modules contain plain functions and small values:

- locks: locks an output, so that only one process at a time writes it.
- run_file: the file that describes a run, and its comparison with a later start of the run.
- stop_request: stops a run after the current steps on SIGTERM and Ctrl-C.
- training_run: the devices of a training run, missing checkpoints, and non-finite losses.
- training_log: writes measurements as JSON lines and TensorBoard events.
"""
