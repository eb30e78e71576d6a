"""One of several classes for each text or pair."""
