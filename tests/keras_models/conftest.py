"""What tests of Keras models share."""

import gc

import pytest


@pytest.fixture
def without_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """For quantize(), in which Keras collects garbage for each variable: seconds each in a process of many tests."""
    monkeypatch.setattr(gc, "collect", lambda *_: 0)
