"""Makes record files from text files, on one machine (`one_machine`) or on a Dask cluster (`on_dask`).

There are two algorithms. `fast` uses all processor cores and little memory, and can be resumed. On a Dask cluster, the
cluster's workers run the tasks of this algorithm. `reference` is the original script's algorithm, record by record. The
package imports `rules` and `text`. Only `commands` imports this package.
"""
