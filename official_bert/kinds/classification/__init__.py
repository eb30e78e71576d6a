"""The classification kind: predicts one of several classes for each text or text pair."""
