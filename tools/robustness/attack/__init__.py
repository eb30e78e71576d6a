"""An attack from outside, behind `make attack`: kills, damaged files, odd input, odd paths, limits, hostile requests.

Each kind of attack is a module with a function `attack`, which tries one case. A case is held if the program gives the
same result as unharmed, to the bit, or refuses with a clear line, and loses nothing that was written before; a
traceback, a hang, a crash, much memory or a silently wrong result is not. Every case follows from the seed and its
number: `python -m tools.robustness.attack --only=KIND --seed=SEED --case=NUMBER` tries it again.
"""
