import keras
import numpy as np
import pytest

from official_bert.tasks.heads.question_answering import QuestionAnsweringHead


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
