"""The engine that everything here learns and predicts with, whichever door it is entered by.

A replica's step and its share of the loss, batches, replicas, the predictor, and the model to begin with. Pre-training
takes what a step does with its gradients from here, and has a forward pass of its own.
"""
