"""What every training step here is made of, whatever it learns; pre-training and fine-tuning import it."""
