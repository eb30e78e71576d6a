"""What a flag may choose of hardware, precision and optimizer, by name. Importing this needs no TensorFlow.

distribution.py and optimizers.py turn the names into objects.
"""

# A flag's name of a precision: the Keras dtype policy.
DTYPES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}
STRATEGIES = ONE_DEVICE, MIRRORED, MULTI_WORKER, TPU = ("one_device", "mirrored", "multi_worker", "tpu")
OPTIMIZERS = ("adamw", "lamb", "keras_adamw")
