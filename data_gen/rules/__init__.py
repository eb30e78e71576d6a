"""The rules for making records: which sentences a record contains, and which of its tokens are predicted.

Each rule exists twice. `instances` and `masking` are the original's algorithm and serve as the reference.
`vectorized_instances` and `vectorized_masking` do the same for many documents at once, with the generator in
`random_numbers`. The package imports `text`. Only the pipelines import this package.
"""
