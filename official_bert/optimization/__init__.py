"""Optimizers, learning-rate schedules, loss scaling, precision and distribution strategies."""
