"""Fine-tuning: options, the initial model, batches, the trainer, sweeps, distillation, and a model card at the end."""
