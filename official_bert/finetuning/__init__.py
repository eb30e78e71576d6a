"""Fine-tuning: batches, the loss and the step (for the command and for Keras' `fit`), runs, sweeps and distillation."""
