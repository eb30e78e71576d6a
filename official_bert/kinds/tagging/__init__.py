"""The tagging kind: predicts a tag for each word of a text, such as a named entity."""
