"""Fine-tuning: options, the initial model, batches, the trainer, sweeps, distillation, and a report at the end.

Imported by export, keras_models and tpu_check.
"""
