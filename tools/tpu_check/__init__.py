"""Whether a run of run_pretraining fits a TPU, found by compiling its step for one that is not there."""
