"""The rules of records: which sentences a record contains, and which tokens are predicted.

Each rule exists twice. `instances` and `masking` are the original's algorithm, the reference. `vectorized_instances`
and `vectorized_masking` do the same for many documents at once. `random_numbers` are the same on every machine.
Imports `text`. Only the pipelines import this package.
"""
