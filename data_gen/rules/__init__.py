"""What a record is: which sentences it has, and which tokens are to be predicted.

Each rule stands here twice. `instances` and `masking` are the original's algorithm, to be read and compared with;
`vectorized_instances` and `vectorized_masking` do the same for many documents at once, with `random_numbers` that are
the same on every machine. The package imports `text`; the pipelines import it.
"""
