"""Fine-tuning: options, the initial model, batches, the trainer, sweeps, distillation, and a report at the end."""
