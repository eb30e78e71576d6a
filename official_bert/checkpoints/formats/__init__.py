"""One module for each checkpoint format, with its own literal table of names."""
