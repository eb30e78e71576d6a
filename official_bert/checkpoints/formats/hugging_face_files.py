"""The tensors of a Hugging Face folder: their names, and the files with them.

The weights are in safetensors, tf_model.h5, or shards of either with an index file. Tensor names of earlier versions of
transformers are converted to the names of the current version. Pickled weights are never opened, because they can run
any code.

Files of transformers' TensorFlow classes (TFBertModel and similar, removed in version 5) name the same layers
differently. These names are converted to PyTorch's. Their dense kernels are stored as in Keras. PyTorch stores them
transposed.
"""

import dataclasses
import functools
import os
import re
from collections.abc import Collection
from typing import Any

from official_bert.checkpoints import checksums, hdf5
from official_bert.checkpoints.checkpoint import (
    ENCODER,
    MASKED_LM,
    MULTIPLE_CHOICE,
    NEXT_SENTENCE,
    POOLED_HEADS,
    POOLER,
    QUESTION_ANSWERING,
    SEQUENCE_CLASSIFIER,
    TOKEN_CLASSIFIER,
    Array,
)
from official_bert.checkpoints.formats.format import CheckpointPath
from official_bert.checkpoints.tensors import Naming, TensorFile, look_up_name
from official_bert.errors import UserError
from official_bert.utils import files

SAFETENSORS_FILE = "model.safetensors"
TENSORFLOW_FILE = "tf_model.h5"
PICKLED_FILE = "pytorch_model.bin"
INDEX = ".index.json"
# The first of these files in a folder is read.
WEIGHTS_FILES = (SAFETENSORS_FILE, SAFETENSORS_FILE + INDEX, TENSORFLOW_FILE, TENSORFLOW_FILE + INDEX)

# The prefix of a name in TensorFlow's files: the model's layer and the model's name.
_NAME_OF_MODEL = re.compile(
    r"^.*?(?<![^/])(?=(bert/(embeddings|encoder|pooler)|(mlm|nsp)___cls/(predictions|seq_relationship)|"
    r"(classifier|qa_outputs)/(kernel|bias))(/|$))"
)
_OTHER_MODEL = re.compile(r"(?:^|.*[./])(\w+)[./](?:embeddings|encoder|transformer)[./]")

# Hugging Face's names, by layer or variable of our models (see `look_up_name`). {} is the number of a block.
_TABLE = {
    "word_embeddings": "bert.embeddings.word_embeddings",
    "token_type_embeddings": "bert.embeddings.token_type_embeddings",
    "position_embeddings": "bert.embeddings.position_embeddings",
    "embeddings_layer_norm": "bert.embeddings.LayerNorm",
    "layer_{}_attention_query": "bert.encoder.layer.{}.attention.self.query",
    "layer_{}_attention_key": "bert.encoder.layer.{}.attention.self.key",
    "layer_{}_attention_value": "bert.encoder.layer.{}.attention.self.value",
    "layer_{}_attention_output": "bert.encoder.layer.{}.attention.output.dense",
    "layer_{}_attention_layer_norm": "bert.encoder.layer.{}.attention.output.LayerNorm",
    "layer_{}_intermediate": "bert.encoder.layer.{}.intermediate.dense",
    "layer_{}_output": "bert.encoder.layer.{}.output.dense",
    "layer_{}_output_layer_norm": "bert.encoder.layer.{}.output.LayerNorm",
    "pooler": "bert.pooler.dense",
    "masked_lm_transform": "cls.predictions.transform.dense",
    "masked_lm_layer_norm": "cls.predictions.transform.LayerNorm",
    "masked_lm_output/bias": "cls.predictions.bias",
    "next_sentence": "cls.seq_relationship",
    "question_answering": "qa_outputs",
    # These three share names (see CLASSIFIERS). A model has at most one of them, according to its class.
    "sequence_classifier": "classifier",
    "token_classifier": "classifier",
    "multiple_choice": "classifier",
}
SUFFIXES = {"embeddings": ".weight", "kernel": ".weight", "bias": ".bias", "gamma": ".weight", "beta": ".bias"}
# The heads of each class.
HEADS: dict[str, set[str]] = {
    "BertModel": set(),
    "BertForPreTraining": {MASKED_LM, NEXT_SENTENCE},
    "BertForMaskedLM": {MASKED_LM},
    "BertForNextSentencePrediction": {NEXT_SENTENCE},
    "BertForSequenceClassification": {SEQUENCE_CLASSIFIER},
    "BertForMultipleChoice": {MULTIPLE_CHOICE},
    "BertForTokenClassification": {TOKEN_CLASSIFIER},
    "BertForQuestionAnswering": {QUESTION_ANSWERING},
}
# The heads that have the same names in a file.
CLASSIFIERS = {SEQUENCE_CLASSIFIER, TOKEN_CLASSIFIER, MULTIPLE_CHOICE}
# Tensors that are not weights, or copies of others.
_IGNORED = {
    "of numbers that old versions kept": r"bert\.embeddings\.(position_ids|token_type_ids)",
    "of the output layer's copies (of the word embeddings, of its bias)": r"cls\.predictions\.decoder\.(weight|bias)",
}
# Copies that must equal their originals, because our output layer shares them.
TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}

PYTORCH = Naming(
    functools.partial(look_up_name, _TABLE, SUFFIXES),
    transposed=".*/kernel",  # PyTorch stores the matrices of dense layers as [out, in].
    ignored=_IGNORED,
    foreign={
        "of heads or programs that BERT does not have": (
            r"(?!(bert\.(embeddings|encoder|pooler)|cls\.(predictions|seq_relationship))\.).*"
        )
    },
)
TENSORFLOW = dataclasses.replace(PYTORCH, transposed="")


def find_class(parts: Collection[str]) -> str | None:
    """Returns the class with exactly these parts (encoder, pooler, heads), or None. Some heads need no pooler."""
    heads = set(parts) - {ENCODER, POOLER}
    if POOLER not in parts and heads & {NEXT_SENTENCE, *POOLED_HEADS}:
        return None
    return next((name for name, each in HEADS.items() if each == heads), None)


def find_weights(path: CheckpointPath) -> str | None:
    """Returns the name of the weight file at a path, or of the index file of its shards. None if both are missing."""
    return next((name for name in WEIGHTS_FILES if path.has(name)), None)


def open_weights(path: str) -> tuple[TensorFile, Naming]:
    """Opens a weight file, or all shards that an index file lists.

    Returns:
        The tensors under transformers' current PyTorch names, and the Naming (names and layout) of the framework that
        wrote them, PyTorch or TensorFlow.

    Raises:
        UserError: If a file is missing, damaged or outside of the folder, or the model is not a BERT.
    """
    source = checksums.verify_tensors(
        _open_index(path) if path.endswith(INDEX) else _open_file(path), os.path.dirname(path)
    )
    if any("/" in name for name in source.shapes):
        source, naming = _rename(source, _tensorflow_name), TENSORFLOW
    else:
        source, naming = _rename(source, _pytorch_name), PYTORCH
    if PYTORCH.get_name("word_embeddings/embeddings") not in source.shapes:
        matches = (_OTHER_MODEL.match(name) for name in source.shapes)
        other = next((match[1] for match in matches if match and match[1] != "bert"), None)
        raise UserError(
            f"{path} contains {f'tensors of {other}' if other else 'no tensors of a BERT'}; only BERT is supported"
        )
    return source, naming


def _open_file(path: str) -> TensorFile:
    return hdf5.open_hdf5(path) if path.endswith(".h5") else open_safetensors(path)


def _open_index(path: str) -> TensorFile:
    """Opens all shards that an index file lists, as one source of tensors."""
    folder = os.path.dirname(path)
    weight_map = files.read_json_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"{path} has no weight_map, which lists the file of each tensor; download it again")
    suffix = os.path.splitext(path.removesuffix(INDEX))[1]
    holders: dict[str, TensorFile] = {}
    for shard in sorted(set(map(str, weight_map.values()))):
        if os.path.basename(shard) != shard or not shard.endswith(suffix):
            raise UserError(f"{path} names {shard!r}; expected the name of a {suffix} file in its own folder")
        if not files.exists(os.path.join(folder, shard)):
            raise UserError(
                f"{os.path.join(folder, shard)} is missing, although {path} lists it; copy all files of the model"
            )
        source = _open_file(os.path.join(folder, shard))
        holders |= dict.fromkeys(source.shapes, source)
    # In the index of TensorFlow's files, each name begins with the model's name. In the shards it does not.
    held = {_tensorflow_name(name) for name in holders}
    absent = [name for name in weight_map if _tensorflow_name(name) not in held]
    if absent:
        raise UserError(f"{weight_map[absent[0]]} in {folder} lacks {absent[0]}, although {path} lists it there")
    shapes = {name: source.shapes[name] for name, source in holders.items()}
    return TensorFile(path, shapes, lambda name: holders[name].read(name))


def open_safetensors(path: str) -> TensorFile:
    """Opens a .safetensors file. Raises a UserError if it is damaged."""
    import safetensors

    if files.is_remote(path):
        raise UserError(f"{path} is on a remote file system; copy the folder to this machine first")
    files.check_regular(path)
    try:
        opened: Any = safetensors.safe_open(path, framework="numpy")
        shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged: {error}; restore the file from a copy") from error

    def read(name: str) -> Array:
        try:
            value: Array = opened.get_tensor(name)
        except Exception as error:  # safetensors raises many kinds of errors for types that NumPy lacks, such as float8
            kind = opened.get_slice(name).get_dtype()
            raise UserError(
                f"the tensor {name} in {path} has the type {kind}, which cannot be read: {error}"
            ) from error
        return value

    return TensorFile(path, shapes, read)


def _pytorch_name(name: str) -> str:
    """Returns the name that transformers uses today for a tensor of a file that PyTorch wrote.

    Old files use gamma and beta, and files of encoders lack the prefix "bert.". PyTorch's wrappers (DataParallel,
    compile) and users' own classes add an attribute's name as a prefix.
    """
    name = re.sub(r"^((module|_orig_mod|model)\.)+", "", name)
    name = re.sub(r"^(embeddings|encoder|pooler)\.", r"bert.\1.", name)
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _tensorflow_name(name: str) -> str:
    """Converts a tensor's name in a file or index that a TensorFlow class wrote to the name that PyTorch files use."""
    name = _NAME_OF_MODEL.sub("", name.removesuffix(":0"))
    name = re.sub(r"^(mlm|nsp)___cls/", "cls/", name).replace("/layer_._", "/layer/")
    layer, _, variable = name.rpartition("/")
    return layer.replace("/", ".") + SUFFIXES.get(variable, f".{variable}")


def _rename(source: TensorFile, rename: Any) -> TensorFile:
    """Returns the source with names converted by `rename`. Tensors that get the same name must have equal values."""
    names: dict[str, list[str]] = {}
    for name in source.shapes:
        names.setdefault(rename(name), []).append(name)

    def read(name: str) -> Array:
        first, *others = names[name]
        value = source.read(first)
        for other in others:
            if source.shapes[other] != source.shapes[first] or source.read(other).tobytes() != value.tobytes():
                raise UserError(
                    f"{source.path} contains {first} and {other}, two copies of one tensor, with different values"
                )
        return value

    return TensorFile(source.path, {new: source.shapes[olds[0]] for new, olds in names.items()}, read)
