"""Fine-tuning: batches, the loss and the step (for the command and Keras' `fit`), and runs, sweeps and distillation."""
