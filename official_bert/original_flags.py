"""The flags of google-research/bert's scripts that have another name here, or none; docs/migration.md shows them.

All others of its flags have their name and meaning here.
"""

# By command: the original's name, and ours, where the meaning is equal.
ALIASES = {
    "finetune": {"task_name": "task", "init_checkpoint": "init", "predict_batch_size": "eval_batch_size"},
    "features": {"init_checkpoint": "init"},
}

_CONFIGURATION = "it is read from the folder of --init; leave it out (for random weights give --init=bert_config.json)"
_FEATURE_DEVICES = "the device is found by itself; leave it out"
_DATA_FILES = "only --task=table takes files; other tasks read those of --data_dir by their usual names"
_TPU = ("use_tpu", "tpu_name", "tpu_zone", "gcp_project", "master", "num_tpu_cores")

# By command: the original's name, and what to give in its place.
REFUSED = {
    "pretrain": {"master": "give the address as --tpu_name"},
    "finetune": {
        "bert_config_file": _CONFIGURATION,
        "save_checkpoints_steps": "give --eval_steps: each evaluation saves",
        "iterations_per_loop": "there is no such loop; leave it out",
        "train_file": _DATA_FILES,
        "predict_file": _DATA_FILES,
        "version_2_with_negative": "give --task=squad_v2",
        "verbose_logging": "there is no more to log; leave it out",
        "master": "give the address as --tpu_name",
        "num_tpu_cores": "all cores of the TPU are used; leave it out",
    },
    "features": {
        "bert_config_file": _CONFIGURATION,
        "use_one_hot_embeddings": "it is of no use here; leave it out",
        **dict.fromkeys(_TPU, _FEATURE_DEVICES),
    },
}
