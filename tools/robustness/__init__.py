"""Attacks (`make attack`) and mutation testing (`make mutations`), which take longer than tests may.

Both use helpers of the tests. tests/tools/robustness tests them.
"""
