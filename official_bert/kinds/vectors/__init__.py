"""The vectors kind: computes a vector for each text, so that texts of similar meaning have similar directions."""
