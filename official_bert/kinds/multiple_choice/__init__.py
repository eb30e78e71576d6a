"""The multiple_choice kind: predicts which of several endings continues a text."""
