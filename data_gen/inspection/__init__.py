"""Reads record files back: shows them with statistics (`overview`) and checks every byte (`verification`).

Imports only `options` of data_gen, so that the checks do not share code with the pipelines that write records.
"""
