"""From text to the TFRecord files that BERT is pre-trained on."""
