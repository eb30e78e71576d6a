"""The commands of the library. Each one parses its flags into option classes and calls one function.

Modules that need TensorFlow are imported when the command runs, after its flags have been checked.
"""

import dataclasses

from official_bert.adaptation.options import AdaptationOptions
from official_bert.checkpoints.options import ConversionOptions
from official_bert.errors import UserError
from official_bert.export.options import ExportOptions
from official_bert.finetuning import original_scripts
from official_bert.finetuning.options import FinetuningOptions
from official_bert.finetuning.original_scripts import OriginalOptions, OriginalSquadOptions
from official_bert.inference.options import BatchPredictionOptions, FeatureOptions, FillMaskOptions, ShardOptions
from official_bert.pretraining.options import PretrainingOptions
from official_bert.serving.options import CheckOptions, ServingOptions
from official_bert.tasks.options import SQUAD, TASK_OPTIONS, SquadOptions, TaskOptions
from official_bert.utils.allocator import tune_allocator
from official_bert.utils.command_line import Command, Variant

# Replacements for flags of the original's scripts. docs/reference/migration.md has the complete table.
_CONFIGURATION = (
    "remove it, because --init includes the configuration (for random weights, pass --init=bert_config.json)"
)
_DATA_FILES = "only --task=table and SQuAD take file names; pass --data_dir, which contains the files of other tasks"


def _pretrain(options: PretrainingOptions) -> int:
    tune_allocator()
    from official_bert.pretraining.run import pretrain

    code = pretrain(options)
    if code == 0:
        print(f"the run is in {options.output_dir}")
    return code


PRETRAIN = Command(
    program="official-bert pretrain",
    summary="Pre-trains BERT on TFRecord files with the masked-LM and next-sentence objectives.",
    before="create the records with official-bert learn-vocabulary and official-bert make-records",
    after="read model/MODEL_CARD.md; try official-bert fill-mask or official-bert finetune",
    main=_pretrain,
    options=(PretrainingOptions,),
    original_script="run_pretraining.py",
    refused={"master": "pass the address as --tpu_name"},
    examples=(
        (
            "--do_train --input_file='data/train-*.tfrecord' --output_dir=model "
            "--bert_config_file=configs/models/uncased_L-2_H-128_A-2.json"
        ),
        (
            "--do_eval --input_file=data/heldout.tfrecord --output_dir=model "
            "--bert_config_file=configs/models/uncased_L-2_H-128_A-2.json"
        ),
    ),
)


def _adapt(options: AdaptationOptions) -> int:
    tune_allocator()
    from official_bert.adaptation import adapting

    code = adapting.run(options)
    if code == 0:
        print(f"the adapted model is in {options.output_dir}")
    return code


ADAPT = Command(
    program="official-bert adapt",
    summary="Continues pre-training on your own text, optionally with new words in the vocabulary.",
    before="get weights (see official-bert models) and text files with empty lines between documents",
    after="official-bert fill-mask --model_dir=adapted, or official-bert finetune --init=adapted",
    main=_adapt,
    extra="data",
    options=(AdaptationOptions,),
    examples=(
        "--init=google://uncased_L-4_H-256_A-4 --input_file='tickets/*.txt' --output_dir=adapted",
        "--init=bert-base-uncased --input_file=law.txt --general_file='wiki/*' --new_words=500 --output_dir=adapted",
    ),
)


def _finetune(options: FinetuningOptions, task_options: TaskOptions) -> None:
    tune_allocator()
    from official_bert.finetuning import runner, sweep

    options = dataclasses.replace(options, task_options=task_options)
    if sweep.is_sweep(options):
        sweep.run_sweep(options)
    else:
        runner.run(options)
    print(f"the run is in {options.output_dir}")


FINETUNE = Command(
    program="official-bert finetune",
    summary="Fine-tunes BERT on a task.",
    before="get a table with columns text and label, and weights (see official-bert models)",
    after="read mine/MODEL_CARD.md; official-bert export --model_dir=mine --export_dir=exports/mine",
    main=_finetune,
    extra="finetune",
    options=(FinetuningOptions,),
    chooser="task",
    variants={task: Variant((options,), vars(options.defaults)) for task, options in TASK_OPTIONS.items()},
    aliases={"task_name": "task", "init_checkpoint": "init", "predict_batch_size": "eval_batch_size"},
    refused={
        "bert_config_file": _CONFIGURATION,
        "save_checkpoints_steps": "pass --eval_steps, because each evaluation saves a checkpoint",
        "iterations_per_loop": "remove it",
        "train_file": _DATA_FILES,
        "predict_file": _DATA_FILES,
        "version_2_with_negative": "pass --task=squad_v2",
        "verbose_logging": "remove it",
        "master": "pass the address as --tpu_name",
        "num_tpu_cores": "remove it, because all cores of the TPU are used",
    },
    examples=(
        (
            "--task=table --init=bert-mini --train_file=train.csv --eval_file=dev.csv --do_train "
            "--do_eval --output_dir=mine"
        ),
        "--task=sst-2 --init=uncased_L-2_H-128_A-2 --data_dir=SST-2 --do_train --do_eval --output_dir=sentiment",
    ),
)


def _run_classifier(options: FinetuningOptions, original: OriginalOptions, task_options: TaskOptions) -> None:
    tune_allocator()
    original_scripts.run_classifier(options, original, task_options)


_SCRIPT = dataclasses.replace(
    FINETUNE,
    options=(FinetuningOptions, OriginalOptions),
    main=_run_classifier,
    script_flags=("--noadam_bias_correction",),
    refused={name: text for name, text in FINETUNE.refused.items() if name == "master"},
)
RUN_CLASSIFIER = dataclasses.replace(
    _SCRIPT,
    program="python -m run_classifier",
    original_script="run_classifier.py",
    summary="Fine-tunes BERT on a sentence or sentence-pair task, with the original's flags and output files.",
    examples=("--task_name=MRPC --data_dir=MRPC --init_checkpoint=BERT/bert_model.ckpt --do_train --output_dir=mrpc",),
)


def _run_squad(options: FinetuningOptions, original: OriginalSquadOptions, task_options: SquadOptions) -> None:
    tune_allocator()
    original_scripts.run_squad(options, original, task_options)


RUN_SQUAD = dataclasses.replace(
    _SCRIPT,
    program="python -m run_squad",
    original_script="run_squad.py",
    summary="Fine-tunes BERT on SQuAD, with the original's flags and output files.",
    options=(FinetuningOptions, OriginalSquadOptions),
    main=_run_squad,
    script_flags=(*_SCRIPT.script_flags, f"--task={SQUAD}"),
    examples=("--train_file=train-v1.1.json --init_checkpoint=BERT/bert_model.ckpt --do_train --output_dir=squad",),
)


def _convert(options: ConversionOptions) -> None:
    from official_bert.checkpoints import conversion

    for line in conversion.convert(options):
        print(line)


CONVERT = Command(
    program="official-bert convert",
    summary="Converts checkpoints between formats. Can change the vocabulary and the maximum sequence length.",
    before="get weights in any format; google://NAME and hf://OWNER/NAME download them",
    after="pass the folder to official-bert finetune --init, or to the other program",
    main=_convert,
    extra="convert",
    options=(ConversionOptions,),
    examples=(
        "--from=uncased_L-12_H-768_A-12 --to=bert-base",
        "--from=bert-base --to=for-transformers --to_format=hugging_face",
    ),
)


def _export(options: ExportOptions) -> None:
    from official_bert.export import formats

    for folder in formats.export(options).values():
        print(f"wrote {folder}")


EXPORT = Command(
    program="official-bert export",
    summary="Exports a trained model as a SavedModel that accepts text, for ONNX Runtime, or for LiteRT.",
    before="train a model with official-bert finetune or pretrain",
    after="official-bert serve --model=exports/sentiment, or official-bert predict",
    main=_export,
    extra="serve",
    options=(ExportOptions,),
    examples=(
        "--model_dir=sentiment --export_dir=exports/sentiment",
        "--model_dir=sentiment --export_dir=exports/sentiment --eval_file=dev.csv --for_serving=2.19",
        "--model_dir=bert-base --export_dir=exports/encoder --encoder",
        "--model_dir=sentiment --export_dir=exports/onnx --format=onnx --quantization=dynamic_int8 --eval_file=dev.csv",
        "--model_dir=sentiment --export_dir=exports --format=saved_model,onnx,litert --eval_file=dev.csv",
    ),
)


def _serve(options: ServingOptions) -> None:
    from official_bert.serving import server

    server.serve(options)


SERVE = Command(
    program="official-bert serve",
    summary="Serves exported models over HTTP.",
    before="export a model: official-bert export --model_dir=sentiment --export_dir=exports/sentiment",
    after="open http://127.0.0.1:8501 to try the model; programs can read /openapi.json",
    main=_serve,
    extra="serve",
    tensorflow=False,  # ONNX models do not need it.
    options=(ServingOptions,),
    examples=(
        "--model=exports/sentiment",
        "--model=sentiment=exports/sentiment --model=questions=exports/squad --port=8080",
    ),
)


def _check_export(options: CheckOptions, arguments: list[str]) -> None:
    from official_bert.serving import check_export

    if len(arguments) != 1:
        raise UserError(
            f"received {len(arguments)} arguments; expected the folder of an export or the address of a model"
        )
    print(check_export.check(options, arguments[0]))


CHECK_EXPORT = Command(
    program="official-bert check-export",
    summary="Replays an export's reference inputs against the export or a running server, and compares the outputs.",
    before="export a model: official-bert export --model_dir=sentiment --export_dir=exports/sentiment",
    after="if all outputs match: official-bert serve --model=exports/sentiment",
    main=_check_export,
    extra="serve",
    tensorflow=False,  # A SavedModel runs in a separate process.
    options=(CheckOptions,),
    positional="the folder of an export, or the address of a served model",
    examples=(
        "exports/sentiment",
        "--export_dir=exports/sentiment http://localhost:8501/v1/models/sentiment",
    ),
)


def _predict(options: BatchPredictionOptions, shards: ShardOptions) -> None:
    tune_allocator()
    if shards.dask:
        from official_bert.inference import on_dask

        print(on_dask.predict(options, shards.num_shards, shards.dask))
    else:
        from official_bert.inference import batch_prediction

        print(batch_prediction.predict(options, shards.selected()))


PREDICT = Command(
    program="official-bert predict",
    summary="Computes predictions for a file of texts with an exported model.",
    before="export a model: official-bert export --model_dir=sentiment --export_dir=exports/sentiment",
    after="read answers.jsonl, which has one line per text, in the same order",
    main=_predict,
    extra="serve",
    tensorflow=False,  # ONNX exports do not need it.
    options=(BatchPredictionOptions, ShardOptions),
    examples=(
        "--export_dir=exports/sentiment --input_file=texts.csv --output_file=answers.jsonl",
        "--export_dir=exports/squad/1 --input_file=questions.jsonl --output_file=answers.jsonl --batch_size=64",
        "--export_dir=exports/sentiment --input_file=texts.csv --output_file=answers.jsonl --shard=0/8",
        (
            "--export_dir=/shared/sentiment --input_file='/shared/texts-*.csv' --output_file=/shared/answers.jsonl "
            "--dask=tcp://scheduler:8786 --num_shards=100"
        ),
    ),
)


def _fill_mask(options: FillMaskOptions, texts: list[str]) -> None:
    from official_bert.inference import fill_mask

    fill_mask.print_candidates(options, texts)


FILL_MASK = Command(
    program="official-bert fill-mask",
    summary="Predicts the [MASK] tokens in texts with a pre-trained model.",
    before="pre-train a model with official-bert pretrain, or get weights",
    after="fine-tune the model: official-bert finetune --init=model",
    main=_fill_mask,
    options=(FillMaskOptions,),
    positional="texts that contain [MASK]",
    examples=(
        '--model_dir=model "the capital of france is [MASK] ."',
        '--model_dir=model --top_k=3 "[MASK] is a [MASK] ."',
    ),
)


def _extract_features(options: FeatureOptions, shards: ShardOptions) -> None:
    tune_allocator()
    if shards.dask:
        from official_bert.inference import on_dask

        print(on_dask.write_vectors(options, shards.num_shards, shards.dask))
    else:
        from official_bert.inference import feature_extraction

        print(feature_extraction.write_vectors(options, shards.selected()))


FEATURES = Command(
    program="official-bert features",
    summary="Writes the encoder's vectors of texts: one per token, per word or per text.",
    before="get weights in any format, and a file with one text per line",
    after="read vectors.jsonl; for one vector per text, pass --pooling=mean --output_file=vectors.npy",
    main=_extract_features,
    extra="data",
    options=(FeatureOptions, ShardOptions),
    original_script="extract_features.py",
    aliases={"init_checkpoint": "init"},
    refused={
        "bert_config_file": _CONFIGURATION,
        "use_one_hot_embeddings": "remove it",
        **dict.fromkeys(
            ("use_tpu", "tpu_name", "tpu_zone", "gcp_project", "master", "num_tpu_cores"),
            "remove it, because the device is selected automatically",
        ),
    },
    examples=(
        "--init=bert-base-uncased --input_file=texts.txt --output_file=vectors.jsonl",
        "--init=bert-base-uncased --input_file=texts.txt --output_file=vectors.npy --layers=-1 --pooling=mean",
    ),
)


def _list_models() -> None:
    from official_bert.checkpoints import named_models

    for line in named_models.format_table():
        print(line)


MODELS = Command(
    program="official-bert models",
    summary="Lists the models that you can use by name, with sizes and licences.",
    before="no preparation: the list is built in and needs no network",
    after="pass a name as weights: official-bert finetune --init=bert-mini",
    main=_list_models,
    options=(),
    tensorflow=False,
)
