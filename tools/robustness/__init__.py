"""Attacks (`make attack`) and mutation testing (`make mutations`), which take too long to be part of the tests.

Both use helpers of the tests. tests/tools/robustness tests them.
"""
