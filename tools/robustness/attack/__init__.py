"""Attacks on the project from outside, behind `make attack`: kills, damaged files, contradictions, hostile requests.

Each module among damage, contradictions, kills and requests has a function `attack` that tries one case. The program
holds if its result is equal to the result of an undisturbed run, or if it stops with a clear error and loses nothing
that was written before. It does not hold if it prints a traceback, hangs, crashes, needs too much memory or returns a
wrong result without an error. The seed, the kind and the number of a case determine its random choices:
`python -m tools.robustness.attack --only=KIND --seed=SEED --case=NUMBER` repeats a case.
"""
