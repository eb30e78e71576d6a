"""The multi_label kind: predicts any number of classes, also none, for each text or text pair."""
