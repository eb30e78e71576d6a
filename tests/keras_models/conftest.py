"""Shared fixtures of the Keras model tests."""

import gc

import pytest

from official_bert.inference.keras_model import KerasRunner


@pytest.fixture
def pause_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables garbage collection, which makes quantize() slow: Keras collects once for each variable."""
    monkeypatch.setattr(gc, "collect", lambda *_: 0)


@pytest.fixture(autouse=True)
def untraced_predictions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Computes the predictions of fast tests without a graph. Tracing it takes longer than a few predictions.

    Fast tests elsewhere, such as tests/test_every_interface.py, trace models of every kind. Tests of quantize() check
    that layers are traced again.
    """
    if not {"slow", "two_devices", "pause_collection"} & {*request.node.keywords, *request.fixturenames}:
        monkeypatch.setattr(KerasRunner, "_traced_forward", KerasRunner._forward_on_all_replicas)
