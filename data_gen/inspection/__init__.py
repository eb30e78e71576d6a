"""Reads record files back: shows them with statistics (`overview`) and checks every byte (`verification`).

The package does not import the pipelines that write records, so that the checks are independent of them.
"""
