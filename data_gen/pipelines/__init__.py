"""Pipelines from text files to record files: on one machine (`one_machine`) or on a Dask cluster (`on_dask`).

`fast` uses all processor cores in little memory and can be resumed. On a Dask cluster the same tasks run on the
cluster's workers. `reference` is the original's algorithm, record by record. The package imports `rules` and `text`;
only the commands import it.
"""
