"""Constructor arguments can be read as attributes, and set only where a change has an effect."""

import inspect

import keras
import numpy as np
import pytest

import official_bert
from official_bert.modeling.config import BertConfig
from tests.conftest import WORDS
from tests.make import assert_refused, refusal

CONFIG = BertConfig(len(WORDS), 8, 1, 2, 16, max_position_embeddings=32)
VOCAB = "\n".join(WORDS) + "\n"

MODELS = {
    official_bert.TextClassifier: {"labels": ["a", "b"], "pair": True},
    official_bert.TextRegressor: {"doc_stride": 4},
    official_bert.TokenTagger: {"labels": ["a", "b"]},
    official_bert.QuestionAnswerer: {"no_answer": True, "doc_stride": 4, "max_query_length": 4},
    official_bert.MultipleChoice: {},
    official_bert.MaskedLM: {"masked_lm_prob": 0.3},
    official_bert.TextEncoder: {"pooling": "cls", "scale": 10.0},
}
TEXTS = ["the cat", "a dog", "walking mat", "the sun"]
SETTABLE = {"temperature", "thresholds", "min_confidence", "name", "trainable"}


@pytest.mark.parametrize("model_class", MODELS, ids=lambda each: each.__name__)
def test_arguments_that_would_not_act_cannot_be_set(model_class: type):
    given = {**MODELS[model_class], "max_seq_length": 12, "seed": 3, "gradient_accumulation_steps": 2}
    model = model_class(CONFIG, VOCAB, **given)
    for name, value in given.items():
        read = getattr(model, name)
        assert (list(read) if isinstance(read, tuple) else read) == value
    names = {"bert_config", "casing", "vocab"}
    for each in (model_class, official_bert.TextClassifier.__mro__[1]):
        parameters = inspect.signature(each.__init__).parameters.values()
        names |= {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    config = model.get_config()
    for name in names - SETTABLE:
        with pytest.raises(AttributeError):
            setattr(model, name, object())
    assert model.get_config() == config


def test_the_error_says_where_to_give_the_argument():
    model = official_bert.TextClassifier(CONFIG, VOCAB, labels=["a", "b"])
    with pytest.raises(AttributeError, match="pair .* pass pair= to TextClassifier"):
        model.pair = True


def test_a_subclass_of_ones_own_may_have_attributes_of_its_own():
    class Mine(official_bert.TextClassifier):
        def __init__(self, *arguments, extra=1, **settings):
            super().__init__(*arguments, **settings)
            self.extra = extra

    model = Mine(CONFIG, VOCAB, labels=["a", "b"], extra=2)
    model.extra = 3
    assert model.extra == 3


@pytest.mark.parametrize(("labels", "y"), [
    (("bad", "good", "so"), ["good", "bad", "so", "bad"]), (("2", "10"), [10, 2, 2, 10]),
    (("False", "True"), [True, False] * 2),
])  # fmt: skip
def test_labels_are_learned_from_y_and_saved(labels, y, tmp_path, capsys):
    model = official_bert.TextClassifier(CONFIG, VOCAB)
    assert model.labels is None
    for call in (model.predict, lambda texts: model.evaluate(texts, y), lambda texts: model.save_checkpoint("model")):
        assert "has no labels yet; call fit first, or create the model with labels=[...]" in refusal(call, TEXTS)
    model.save(tmp_path / "new.keras")
    model = official_bert.TextClassifier.load(str(tmp_path / "new.keras"))
    encoder = model.backbone.get_weights()
    model.compile(keras.optimizers.SGD(0.0), metrics=["accuracy"], run_eagerly=True)
    history = model.fit(TEXTS, y, verbose=2).history
    assert f"note: learned the labels {', '.join(labels)} from y" in capsys.readouterr().out
    assert model.labels == labels
    assert list(history) == ["accuracy", "loss"]
    assert len(model.trainable_variables) == len({each.path for each in model.trainable_variables})
    for found, expected in zip(model.backbone.get_weights(), encoder, strict=True):
        np.testing.assert_array_equal(found, expected)
    model.save(tmp_path / "model.keras")
    loaded = official_bert.TextClassifier.load(str(tmp_path / "model.keras"))
    assert loaded.labels == labels
    np.testing.assert_allclose(loaded.predict(TEXTS), model.predict(TEXTS), atol=1e-6)
    assert "expected one of" in refusal(model.fit, TEXTS, ["other", *y[1:]])


def test_tags_and_several_labels_are_learned_too():
    tagger = official_bert.TokenTagger(CONFIG, VOCAB)
    tagger.fit(["the cat", "a dog"], [["O", "B"], ["O", "I"]], verbose=0)
    assert tagger.labels == ("B", "I", "O")
    several = official_bert.TextClassifier(CONFIG, VOCAB, multi_label=True)
    several.fit(TEXTS, [["b"], [], ["a", "b"], ["c"]], verbose=0)
    assert several.labels == ("a", "b", "c")


@pytest.mark.parametrize(("y", "message"), [
    (np.eye(4), r"y\[0\] is array.*, which is not the name of a class; pass the class names as labels="),
    (["a", None, "b", "a"], r"y\[1\] is None, which is not the name of a class"),
    (["a"] * 4, "expected the names of two or more different classes"),
    (None, "create the model with labels="),
])  # fmt: skip
def test_labels_that_cannot_be_learned_are_named(y, message: str):
    assert_refused(message, official_bert.TextClassifier(CONFIG, VOCAB).fit, TEXTS, y)
