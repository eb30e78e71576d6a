"""Faster implementations of the encoder block, which are checked against its layers before they are used."""
