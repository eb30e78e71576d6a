"""A number for each text or pair."""
