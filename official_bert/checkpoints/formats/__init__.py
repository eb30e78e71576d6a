"""One module for each checkpoint format, each with a literal table from variable paths to the format's names."""
