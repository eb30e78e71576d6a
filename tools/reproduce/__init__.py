"""Reproduces the paper's experiments, table by table: `python -m tools.reproduce --table=5 --scale=tiny`."""
