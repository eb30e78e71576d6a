"""A vector for each text, whose direction expresses its meaning."""
