"""What a constructor takes can be read from a model, and set only where that acts."""

import inspect

import pytest

import official_bert
from official_bert.modeling.config import BertConfig
from tests.conftest import WORDS

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
