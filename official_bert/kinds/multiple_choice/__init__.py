"""The most likely of several endings of a text."""
