"""Optimizers, learning rates, the loss scale, and the distribution strategies that they work under."""
