"""Attacks on the programs from outside (`make attack`): kills, damaged files, contradictions, hostile requests.

The modules damage, contradictions, kills and requests each have a function `attack` that tries one case. The program
withstands the attack ("holds") if its result is the same as without the attack, or if it stops with a clear error and
loses nothing that was written before. It does not hold if it prints a traceback, hangs, crashes, needs too much memory
or returns a wrong result without an error. The seed, the kind and the number of a case determine its random choices:
`python -m tools.robustness.attack --only=KIND --seed=SEED --case=NUMBER` repeats a case.
"""
