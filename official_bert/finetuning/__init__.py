"""Fine-tuning: options, the initial model, batches, the trainer, sweeps, distillation, and a report at the end.

Imports tasks and all that tasks may import. run_finetuning and export import it.
"""
