"""Makes tests/golden/tensorflow_models: small random models as libraries of TensorFlow's past write them.

Each library writes the files of its models itself and computes their outputs; the archives keep both. The libraries are
no dependency of the tests, and need an environment of their own, by `LIBRARIES`:

    TF_USE_LEGACY_KERAS=1 python tests/golden/make_tensorflow_models.py transformers

Every weight is drawn anew, also those that begin with zeros or ones, so that each of them matters.
"""

import os
import pathlib
import sys
import tarfile
import tempfile
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

FOLDER = pathlib.Path(__file__).with_name("tensorflow_models")
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno", "##s", "the", "cat", "sat"]
SIZES = {
    "vocab_size": len(VOCAB), "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 16, "max_position_embeddings": 16, "type_vocab_size": 2,
}  # fmt: skip
LABELS = {0: "noun", 1: "verb", 2: "möglich"}


def inputs() -> dict[str, Any]:
    """Returns the models' inputs, [2, 10], with padding and both segments."""
    mask = np.arange(10) < np.array([[10], [6]])
    ids = np.random.default_rng(1).integers(5, len(VOCAB), (2, 10)) * mask
    segments = (np.arange(10) >= 4) & mask
    arrays = {"input_ids": ids, "input_mask": mask, "segment_ids": segments}
    return {name: value.astype(np.int32) for name, value in arrays.items()}


def drawn(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    """Returns a weight's value."""
    return rng.normal(1.0 if "gamma" in name else 0.0, 0.3, shape).astype(np.float32)


def set_weights(model: Any) -> None:
    """Draws all floating-point weights of a Keras model."""
    rng = np.random.default_rng(0)
    for variable in model.weights:
        if "float" in str(variable.dtype):
            variable.assign(drawn(variable.name, tuple(variable.shape), rng))


def save_outputs(folder: pathlib.Path, outputs: dict[str, Any]) -> None:
    """Writes inputs and outputs, by the names of parity.our_outputs."""
    np.savez(folder / "expected.npz", **inputs(), **{name: np.asarray(value) for name, value in outputs.items()})


def make_transformers(folder: pathlib.Path) -> None:
    """Models of transformers' TFBert classes: tf_model.h5, safetensors of TensorFlow's names, and both in shards."""
    import json

    import transformers

    sequence = {"id2label": LABELS, "label2id": {name: number for number, name in LABELS.items()}}
    models: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
        "model": ("TFBertModel", {}, {}),
        "pretraining": ("TFBertForPreTraining", {}, {}),
        "masked_lm": ("TFBertForMaskedLM", {"hidden_act": "gelu_new"}, {}),
        "next_sentence": ("TFBertForNextSentencePrediction", {}, {}),
        "classifier": ("TFBertForSequenceClassification", sequence, {}),
        "several": ("TFBertForSequenceClassification", {**sequence, "problem_type": "multi_label_classification"}, {}),
        "regressor": ("TFBertForSequenceClassification", {"num_labels": 1, "problem_type": "regression"}, {}),
        "tagger": ("TFBertForTokenClassification", sequence, {}),
        "choice": ("TFBertForMultipleChoice", {}, {}),
        "answerer": ("TFBertForQuestionAnswering", {}, {}),
        "safetensors": ("TFBertForPreTraining", {}, {"safe_serialization": True}),
        "safetensors_classifier": ("TFBertForSequenceClassification", sequence, {"safe_serialization": True}),
        "shards": ("TFBertForPreTraining", {}, {"max_shard_size": "4KB"}),
        "safetensors_shards": ("TFBertForPreTraining", {}, {"max_shard_size": "4KB", "safe_serialization": True}),
        "roberta": ("TFRobertaModel", {}, {}),
        "distilbert": ("TFDistilBertModel", {}, {}),
        "albert": ("TFAlbertModel", {"embedding_size": 4}, {}),
    }
    features = inputs()
    arguments = {"input_ids": "input_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}
    for name, (name_of_class, settings, saving) in models.items():
        model_class = getattr(transformers, name_of_class)
        sizes = SIZES
        if "Distil" in name_of_class:
            sizes = {"vocab_size": len(VOCAB), "dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 16}
            sizes["max_position_embeddings"] = 16
        config = model_class.config_class(layer_norm_eps=1e-6, **sizes, **settings)
        model = model_class(config)
        given = {theirs: features[ours] for theirs, ours in arguments.items()}
        if "Distil" in name_of_class:
            del given["token_type_ids"]
        if name == "choice":
            given = {theirs: value[:, None] for theirs, value in given.items()}
        model(given)
        set_weights(model)
        outputs = model(given, output_hidden_states=True)
        model.save_pretrained(folder / name, **{"safe_serialization": False, **saving})
        (folder / name / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
        (folder / name / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
        if not name_of_class.startswith("TFBert"):
            continue
        expected = {f"hidden_{number}": layer for number, layer in enumerate(outputs["hidden_states"][1:])}
        logits = {"masked_lm": "masked_lm_logits", "next_sentence": "next_sentence_logits"}.get(name, "logits")
        names = {
            "pooler_output": "pooled_output", "prediction_logits": "masked_lm_logits",
            "seq_relationship_logits": "next_sentence_logits", "logits": logits,
        }  # fmt: skip
        expected |= {ours: outputs[theirs] for theirs, ours in names.items() if theirs in outputs}
        if "start_logits" in outputs:
            expected["logits"] = np.stack([outputs["start_logits"], outputs["end_logits"]], axis=-1)
        save_outputs(folder / name, expected)


# What makes an archive, and which packages it was made with.
LIBRARIES: dict[str, tuple[Callable[[pathlib.Path], None], str]] = {
    "transformers": (make_transformers, "transformers 4.57.6, tf-keras 2.19.0, tensorflow 2.19.1"),
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or LIBRARIES:
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            LIBRARIES[name][0](folder)
            with tarfile.open(FOLDER / f"{name}.tar.xz", "w:xz") as archive:
                for path in sorted(folder.rglob("*")):
                    archive.add(path, path.relative_to(folder), recursive=False)
        print(f"{name}: {(FOLDER / f'{name}.tar.xz').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
