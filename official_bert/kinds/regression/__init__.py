"""The regression kind: predicts a number for each text or text pair."""
