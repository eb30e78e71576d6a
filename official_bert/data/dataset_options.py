"""The options that every tf.data.Dataset of this project has."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf


def make_dataset_options(shard_policy: "tf.data.experimental.AutoShardPolicy | None" = None) -> "tf.data.Options":
    """Returns the options of a dataset.

    The options turn off autotuning, because its thread sleeps until a wall-clock time: if the clock is set back, the
    end of a run waits until that time. Without autotuning, the number of parallel calls equals the number of
    processors, up to 16.

    Args:
        shard_policy: How several workers share the dataset. If None, TensorFlow's default is used.
    """
    import tensorflow as tf

    options = tf.data.Options()
    if shard_policy is not None:
        options.experimental_distribute.auto_shard_policy = shard_policy
    options.autotune.enabled = False
    return options
