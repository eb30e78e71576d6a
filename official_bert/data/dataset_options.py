"""The options of every tf.data.Dataset that is read."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf


def make_dataset_options(shard_policy: "tf.data.experimental.AutoShardPolicy | None" = None) -> "tf.data.Options":
    """Returns the options of a data set; where several workers share it, with the policy by which they do.

    TensorFlow's thread that tunes a data set while it is read is left out. It waits by the time of day, and is woken a
    moment before it can see that the data set has ended: where the clock was set back by an hour, a run would end an
    hour late. Without it, as many calls run in parallel as there are processors, at most 16.
    """
    import tensorflow as tf

    options = tf.data.Options()
    if shard_policy is not None:
        options.experimental_distribute.auto_shard_policy = shard_policy
    options.autotune.enabled = False
    return options
