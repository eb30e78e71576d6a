import keras
import numpy as np
import pytest

from official_bert.errors import UserError
from official_bert.tasks.heads.question_answering import QuestionAnsweringHead
from official_bert.tasks.heads.questions import Answer


def test_the_loss_of_questions_is_the_mean_of_starts_and_ends():
    names = ("start_logits", "end_logits")
    inputs = [keras.Input((3,)) for _ in names]
    outputs = {
        name: keras.layers.Activation("linear", name=name)(each) for name, each in zip(names, inputs, strict=True)
    }
    model = keras.Model(inputs, outputs)
    head = QuestionAnsweringHead()
    model.compile("sgd", head.loss(), head.loss_weights())
    rng = np.random.default_rng(0)
    logits = {name: rng.normal(size=(2, 3)).astype(np.float32) for name in names}
    labels = {"start_logits": np.array([0, 2], np.int32), "end_logits": np.array([1, 2], np.int32)}
    expected = 0.0
    for name in names:
        losses = np.log(np.exp(logits[name]).sum(-1)) - logits[name][np.arange(2), labels[name]]
        expected += 0.5 * losses.mean()
    assert model.evaluate([logits[name] for name in names], labels, verbose=0, return_dict=True)[
        "loss"
    ] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("answer", "message"), [
    (5, r"y\[0\] is 5; expected a text, or a tuple"),
    (("cat",), r"y\[0\] is \('cat',\); expected a text, or a tuple"),
    (("cat", None), r"y\[0\] is \('cat', None\), which the context does not have there"),
    (None, r"y\[0\] is no answer; pass no_answer=True"),
])  # fmt: skip
def test_what_is_no_answer_is_named(answer, message: str):
    head = QuestionAnsweringHead()
    with pytest.raises(UserError, match=message):
        head.examples((["who sat"], ["the cat sat"]), [answer])
    assert head.examples((["who sat"], ["the cat sat"]), [("cat", 4)])[0].answers == (Answer("cat", 4),)
