"""Shared fixtures of the Keras model tests."""

import gc

import pytest


@pytest.fixture
def pause_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables garbage collection, which makes quantize() slow: Keras collects once for each variable."""
    monkeypatch.setattr(gc, "collect", lambda *_: 0)
