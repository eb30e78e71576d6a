"""TensorFlow's profiler over some steps of a run."""

import os

import tensorflow as tf

from official_bert.utils.training_log import TRAIN


class Profile:
    """Starts and stops TensorFlow's profiler."""

    def __init__(self, steps: list[str], folder: str) -> None:
        self.steps = [int(step) for step in steps]
        self._folder = folder
        self._running = False

    def at(self, step: int) -> None:
        """Does what is due when so many steps are done."""
        if self.steps and not self._running and self.steps[0] <= step < self.steps[1]:
            tf.profiler.experimental.start(os.path.join(self._folder, TRAIN))
            self._running = True
        elif self._running and step >= self.steps[1]:
            self.stop()

    def stop(self) -> None:
        """Ends the profile, if one is under way."""
        if self._running:
            tf.profiler.experimental.stop()
            self._running = False
            self.steps = []
            print(f"profile written to {os.path.join(self._folder, TRAIN)}; see it in TensorBoard", flush=True)
