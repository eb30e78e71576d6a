"""What tries the project from outside for longer than a test may take: `make attack`, `make mutations`.

They are no tests themselves (tests/tools/robustness has theirs), but make their samples with the tests' helpers.
"""
