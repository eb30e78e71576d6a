"""Constructor arguments can be read as attributes, and set only where a change has an effect."""

import inspect

import keras
import numpy as np
import pytest

import official_bert
from official_bert.keras_models.learned_labels import learn_labels
from official_bert.kinds import class_labels
from tests.keras_models.test_saving import MODELS
from tests.make import VOCAB, assert_rejected, compile_eagerly, tiny_config
from tests.make import build_text_model as build

TEXTS = ["the cat", "a dog", "walking mat", "the sun"]
CONFIG = tiny_config(num_hidden_layers=1)
SETTABLE = {"temperature", "thresholds", "min_confidence", "name", "trainable"}


@pytest.mark.parametrize("name", MODELS)
def test_attributes_without_effect_cannot_be_set(name: str):
    class_name, settings = MODELS[name]
    given = {"max_seq_length": 12, **settings, "seed": 3, "gradient_accumulation_steps": 2, "name": "mine"}
    given |= {"trainable": False, "rematerialize": True}
    model = build(class_name, **given)
    for argument, value in given.items():
        read = getattr(model, argument)
        assert (list(read) if isinstance(read, tuple) else read) == value
    names, config = {"bert_config", "casing", "vocab"}, model.get_config()
    for each in (type(model), official_bert.TextClassifier.__mro__[1]):
        parameters = inspect.signature(each.__init__).parameters.values()
        names |= {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    for argument in names - SETTABLE:
        with pytest.raises(AttributeError, match=argument):
            setattr(model, argument, object())
    with pytest.raises(AttributeError, match=f"seed=.*{class_name}"):
        model.seed = 4
    assert model.get_config() == config


def test_replacing_the_last_layer_for_learned_labels_keeps_attributes_and_changed_layers():
    class Mine(official_bert.TextClassifier):
        def __init__(self, *arguments, extra=1, **settings):
            super().__init__(*arguments, **settings)
            self.extra = extra

    model = Mine(CONFIG, VOCAB, extra=2)
    model.extra, encoder = model.extra + 1, model.backbone
    model.get_layer("layer_0_intermediate").enable_lora(2)
    kernel = model.get_layer("sequence_classifier").kernel
    kernel.regularizer, kernel.constraint = keras.regularizers.L2(0.1), keras.constraints.NonNeg()
    learn_labels(model, TEXTS, ["a", "b", "c", "b"], verbose=0)
    new_kernel = model.get_layer("sequence_classifier").kernel
    assert (model.extra, model.backbone, model.output_shape) == (3, encoder, (None, 3))
    assert model.get_layer("layer_0_intermediate").lora_enabled
    assert (new_kernel.constraint, new_kernel.regularizer) == (kernel.constraint, kernel.regularizer)


def test_labels_are_not_learned_if_the_last_layer_cannot_be_replaced():
    class Scaled(official_bert.TextClassifier):
        def _build_core(self, *arguments):
            core = super()._build_core(*arguments)
            return keras.Model(core.input, keras.layers.Rescaling(2.0, name="scale")(core.output))

    quantized = build(labels=None)
    quantized.quantize("int8")
    for model in (quantized, Scaled(CONFIG, VOCAB)):
        layers = [layer.name for layer in model.layers]
        assert_rejected(("quantized", "labels=[...]"), model.fit, TEXTS, ["a", "b", "c", "b"])
        assert (model.labels, [layer.name for layer in model.layers]) == (None, layers)


def test_labels_are_learned_from_y_and_saved(tmp_path, capsys):
    path, y = str(tmp_path / "model.keras"), ["good", "bad", "so", "bad"]
    model = build(labels=None)
    assert model.labels is None
    for call in (model.predict, lambda texts: model.evaluate(texts, y), lambda texts: model.save_checkpoint("model")):
        assert_rejected(("fit", "labels=[...]"), call, TEXTS)
    model.save(path)
    model = official_bert.TextClassifier.load(path)
    encoder = [weight + 0.5 for weight in model.backbone.get_weights()]  # not the initial weights of the seed
    model.backbone.set_weights(encoder)
    model.compile(keras.optimizers.SGD(0.0), metrics=["accuracy"], run_eagerly=True)
    assert list(model.fit(TEXTS, y, verbose=2).history) == ["accuracy", "loss"]
    assert "note: learned the labels bad, good, so from y" in capsys.readouterr().out
    assert len(model.trainable_variables) == len({each.path for each in model.trainable_variables})
    keras.tree.map_structure(np.testing.assert_array_equal, model.backbone.get_weights(), encoder)
    model.save(path)
    loaded = official_bert.TextClassifier.load(path)
    assert loaded.labels == model.labels == ("bad", "good", "so")
    np.testing.assert_allclose(loaded.predict(TEXTS), model.predict(TEXTS), atol=1e-6)
    assert_rejected(("y[0]", "'other'", "bad", "good", "so"), model.fit, TEXTS, ["other", *y[1:]])


def test_learned_labels_are_sorted():
    found = [class_labels.learn_label_names(y) for y in ([10, 2, 2, 10], [True, False], [["b"], [], ["a", "c"]])]
    assert found == [["2", "10"], ["False", "True"], ["a", "b", "c"]]


def test_labels_of_taggers_and_multi_label_models_are_learned_from_y(capsys):
    tagger, several = build("TokenTagger", labels=None), build(labels=None, multi_label=True, positive_weights=[1, 2])
    compile_eagerly(tagger, "sgd").fit(["the cat", "a dog"], [["I", "B"], ["I", "O"]], verbose=0)
    assert_rejected(("positive_weights", 3), several.fit, TEXTS[:2], [["O", "B"], ["I"]])
    assert several.get_config()["positive_weights"] == [1, 2]
    several.thresholds = [0.5, 0.6]
    assert_rejected(("thresholds", 3), several.fit, TEXTS[:2], [["O", "B"], ["I"]])
    learn_labels(several, TEXTS[:2], [["O", "B"], ["O"]], verbose=0)  # without compile
    learn_labels(one := build(labels=None, multi_label=True), TEXTS[:1], [["B"]], verbose=0)
    labels = [tagger.labels, several.labels, build(labels=one.labels, multi_label=True).labels]
    assert (labels, capsys.readouterr().out) == ([("B", "I", "O"), ("B", "O"), ("B",)], "")


def test_invalid_labels_in_y_are_named():
    model = build(labels=None)
    for y, names in (
        (np.eye(4), ("y[0]", "array([1., 0., 0., 0.])", "labels=[...]")),
        (["a", None, "b", "a"], ("y[1]", "None")),
        (["a"] * 4, ("['a']", "two")),
        (None, ("lists", "labels=[...]")),
    ):
        assert_rejected(names, model.fit, TEXTS, y)
