"""What stands on an encoder: a class for each kind, with its examples, windows, loss, predictions and scores."""
