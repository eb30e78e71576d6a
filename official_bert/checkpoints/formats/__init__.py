"""One module for each checkpoint format, each with a literal table that maps our names of tensors to the format's."""
