"""Reads record files back: shows them with statistics (`overview`) and checks every byte (`verification`).

From data_gen, this package imports only `options`, so that the checks share no code with the pipelines that write
records.
"""
