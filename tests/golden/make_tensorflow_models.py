"""Makes tests/golden/tensorflow_models: small random models as old TensorFlow libraries write them.

Each library writes the files of its models itself and computes their outputs. The archives contain both. The tests do
not depend on the libraries. `LIBRARIES` lists the packages of the separate environment that each one needs:

    TF_USE_LEGACY_KERAS=1 python tests/golden/make_tensorflow_models.py transformers

All weights are random, even biases and normalization weights (usually zeros or ones), so that each affects the outputs.
"""

import os
import pathlib
import sys
import tarfile
import tempfile
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


def make_inputs(*names: str) -> dict[str, Any]:
    """Returns the ids, mask and segments for the models, [2, 10], with padding and both segments, under these names."""
    mask = np.arange(10) < np.array([[10], [6]])
    ids = np.random.default_rng(1).integers(5, len(VOCAB), (2, 10)) * mask
    arrays = (ids, mask, (np.arange(10) >= 4) & mask)
    return {name: value.astype(np.int32) for name, value in zip(names, arrays, strict=True)}


def set_weights(model: Any) -> None:
    """Assigns random values to all floating-point weights of a Keras model."""
    rng = np.random.default_rng(0)
    for variable in model.weights:
        if "float" in str(variable.dtype):
            mean = 1.0 if "gamma" in variable.name else 0.0
            variable.assign(rng.normal(mean, 0.3, variable.shape).astype(np.float32))


def save_outputs(folder: pathlib.Path, outputs: dict[str, Any]) -> None:
    """Writes inputs and outputs, named as by parity.compute_outputs."""
    inputs = make_inputs("input_ids", "input_mask", "segment_ids")
    np.savez(folder / "expected.npz", **inputs, **{name: np.asarray(value) for name, value in outputs.items()})


def write_vocab(folder: pathlib.Path) -> pathlib.Path:
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    return folder / "vocab.txt"


def make_transformers(folder: pathlib.Path) -> None:
    """Writes models of transformers' TFBert classes: tf_model.h5, safetensors with TF names, and both sharded."""
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
    for name, (name_of_class, settings, saving) in models.items():
        model_class = getattr(transformers, name_of_class)
        given, sizes = make_inputs("input_ids", "attention_mask", "token_type_ids"), SIZES
        if "Distil" in name_of_class:
            del given["token_type_ids"]
            sizes = {"vocab_size": len(VOCAB), "dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 16}
            sizes["max_position_embeddings"] = 16
        model = model_class(model_class.config_class(layer_norm_eps=1e-6, **sizes, **settings))
        if name == "choice":
            given = {theirs: value[:, None] for theirs, value in given.items()}
        model(given)
        set_weights(model)
        outputs = model(given, output_hidden_states=True)
        model.save_pretrained(folder / name, **{"safe_serialization": False, **saving})
        write_vocab(folder / name)
        (folder / name / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
        if not name_of_class.startswith("TFBert"):
            continue
        expected = {f"hidden_{number}": layer for number, layer in enumerate(outputs["hidden_states"][1:])}
        logits = {"masked_lm": "masked_lm_logits", "next_sentence": "next_sentence_logits"}.get(name, "logits")
        names = {"pooler_output": "pooled_output", "prediction_logits": "masked_lm_logits", "logits": logits}
        names["seq_relationship_logits"] = "next_sentence_logits"
        expected |= {ours: outputs[theirs] for theirs, ours in names.items() if theirs in outputs}
        if "start_logits" in outputs:
            expected["logits"] = np.stack([outputs["start_logits"], outputs["end_logits"]], axis=-1)
        save_outputs(folder / name, expected)


def _garden_encoder() -> Any:
    from official.legacy.bert import configs
    from official.nlp.tools import export_tfhub_lib

    config = configs.BertConfig(**SIZES)
    return config, export_tfhub_lib.get_bert_encoder(config)


GARDEN_INPUTS = make_inputs("input_word_ids", "input_mask", "input_type_ids")


def _garden_outputs(outputs: dict[str, Any]) -> dict[str, Any]:
    hidden = {f"hidden_{number}": layer for number, layer in enumerate(outputs["encoder_outputs"])}
    return {**hidden, "pooled_output": outputs["pooled_output"]}


def make_tensorflow_hub(folder: pathlib.Path) -> None:
    """Writes SavedModels of TensorFlow Hub encoders with the exporter of versions 3 and 4, with and without mlm.

    Versions 1 and 2 follow the names documented in the converter of that time, because its code needs TensorFlow
    2.1. Their object layout follows the issues reported about these models.
    """
    import tensorflow as tf
    from official.nlp.modeling import models
    from official.nlp.tools import export_tfhub_lib

    config, encoder = _garden_encoder()
    pretrainer = models.BertPretrainerV2(encoder_network=encoder, mlm_activation=tf.keras.activations.gelu)
    pretrainer(pretrainer.inputs)
    set_weights(pretrainer)
    vocab_file = write_vocab(folder)
    checkpoint = tf.train.Checkpoint(**pretrainer.checkpoint_items).save(str(folder / "checkpoint"))
    for name, with_mlm, do_lower_case in (("hub", False, True), ("hub_mlm", True, False)):
        export_tfhub_lib.export_model(
            str(folder / name), bert_config=config, model_checkpoint_path=checkpoint, with_mlm=with_mlm,
            vocab_file=str(vocab_file), do_lower_case=do_lower_case,
        )  # fmt: skip
        loaded = tf.saved_model.load(str(folder / name))
        expected = _garden_outputs(loaded(GARDEN_INPUTS))
        if with_mlm:
            given = {**GARDEN_INPUTS, "masked_lm_positions": np.tile(np.arange(10, dtype=np.int32), (2, 1))}
            expected["masked_lm_logits"] = loaded.mlm(given)["mlm_logits"]
        _keep_what_is_read(folder / name, expected)
    expected = _garden_outputs(encoder(GARDEN_INPUTS))
    first = (
        ("word_embeddings/embeddings", "bert_model/word_embeddings/embeddings"),
        ("type_embeddings/embeddings", "bert_model/embedding_postprocessor/type_embeddings"),
        ("position_embedding/embeddings", "bert_model/embedding_postprocessor/position_embeddings"),
        ("embeddings/layer_norm", "bert_model/embedding_postprocessor/layer_norm"),
        ("transformer/layer", "bert_model/encoder/layer"),
        ("pooler_transform", "bert_model/pooler_transform"),
        ("self_attention/attention_output", "self_attention_output"),
    )
    for name, replacements in (("hub_1", first), ("hub_2", first[-1:])):
        root = tf.Module()
        root.variables_by_number = []
        for variable in encoder.weights:
            old = variable.name.removesuffix(":0")
            for new_name, old_name in replacements:
                old = old.replace(new_name, old_name)
            root.variables_by_number.append(tf.Variable(variable, name=old))
        root.vocab_file = tf.saved_model.Asset(str(vocab_file))
        root.do_lower_case = tf.Variable(True, trainable=False)
        tf.saved_model.save(root, str(folder / name))
        _keep_what_is_read(folder / name, expected)
    preprocessing = tf.Module()
    preprocessing.vocab_file = tf.saved_model.Asset(str(vocab_file))
    tf.saved_model.save(preprocessing, str(folder / "preprocess"))
    _keep_what_is_read(folder / "preprocess", {})
    for path in (vocab_file, *folder.glob("checkpoint*")):
        path.unlink()


def make_model_garden(folder: pathlib.Path) -> None:
    """Writes SavedModels of model garden sentence classifiers, saved by Keras and by the exporter for serving."""
    import tensorflow as tf
    from official.nlp.modeling import layers, models
    from official.nlp.serving import serving_modules

    _, encoder = _garden_encoder()
    classifier = models.BertClassifier(encoder, num_classes=3)
    set_weights(classifier)
    expected = {**_garden_outputs(encoder(GARDEN_INPUTS)), "logits": classifier(GARDEN_INPUTS)}
    classifier.save(str(folder / "classifier"), include_optimizer=False, save_format="tf")
    _keep_what_is_read(folder / "classifier", expected)

    _, encoder = _garden_encoder()
    head = layers.ClassificationSpec(inner_dim=SIZES["hidden_size"], num_classes=2, name="sentence_prediction")
    classifier = models.BertClassifier(encoder, num_classes=2, cls_head=head, use_encoder_pooler=False)
    set_weights(classifier)
    parameters = serving_modules.SentencePrediction.Params(inputs_only=True)
    module = serving_modules.SentencePrediction(parameters, classifier)
    tf.saved_model.save(module, str(folder / "serving"), module.get_inference_signatures({"serve": "serving_default"}))
    expected = {**_garden_outputs(encoder(GARDEN_INPUTS)), "logits": classifier(GARDEN_INPUTS)}
    del expected["pooled_output"]
    _keep_what_is_read(folder / "serving", expected)


def make_keras_nlp(folder: pathlib.Path) -> None:
    """Writes a preset of the installed keras-nlp: a classifier from version 0.12 on, otherwise a backbone."""
    import keras_nlp

    names = ["vocabulary_size", "hidden_dim", "num_layers", "num_heads", "intermediate_dim", "max_sequence_length"]
    backbone = keras_nlp.models.BertBackbone(**dict(zip(names, SIZES.values(), strict=False)))
    vocab_file = write_vocab(folder)
    tokenizer = keras_nlp.models.BertTokenizer(str(vocab_file), lowercase=True)
    given = make_inputs("token_ids", "padding_mask", "segment_ids")
    preset = folder / "preset"
    if hasattr(backbone, "save_to_preset"):
        preprocessor = keras_nlp.models.BertPreprocessor(tokenizer, sequence_length=16)
        model = keras_nlp.models.BertClassifier(backbone, num_classes=3, preprocessor=preprocessor)
        set_weights(model)
        model.save_to_preset(str(preset))
        expected = {"logits": model(given)}
    else:
        from keras_nlp.src.utils import preset_utils

        set_weights(backbone)
        tokenizer.count_params = lambda: 0  # newer versions of Keras do not count layers that were not built
        preset_utils.save_to_preset(tokenizer, str(preset), config_filename="tokenizer.json")
        preset_utils.save_to_preset(backbone, str(preset))
        expected = {}
    outputs = backbone(given)
    expected |= {"pooled_output": outputs["pooled_output"], "hidden_1": outputs["sequence_output"]}
    save_outputs(preset, expected)
    vocab_file.unlink()


def _keep_what_is_read(folder: pathlib.Path, expected: dict[str, Any]) -> None:
    """Empties a SavedModel's graph, which is large and never read, and adds the model's outputs."""
    (folder / "saved_model.pb").write_bytes(b"")
    for name in ("keras_metadata.pb", "fingerprint.pb"):
        (folder / name).unlink(missing_ok=True)
    if expected:
        save_outputs(folder, expected)


# The functions that make the archives, and the packages that they were run with.
LIBRARIES: dict[str, tuple[Any, str]] = {
    "transformers": (make_transformers, "transformers 4.57.6, tf-keras 2.19.0, tensorflow 2.19.1"),
    "tensorflow_hub": (make_tensorflow_hub, "tf-models-official 2.19.1, tf-keras 2.19.0, tensorflow 2.19.1"),
    "keras_nlp_0.8": (make_keras_nlp, "keras-nlp 0.8.2, tf-keras 2.19.0, tensorflow 2.19.1"),
    "keras_nlp_0.14": (make_keras_nlp, "keras-nlp 0.14.4, keras 3.15.1, tensorflow 2.19.1 (TF_USE_LEGACY_KERAS=0)"),
    "model_garden": (make_model_garden, "tf-models-official 2.19.1, tf-keras 2.19.0, tensorflow 2.19.1"),
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
