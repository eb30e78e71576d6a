"""Tasks: a Task reads its data, converts them to features, decodes and scores predictions, and writes them to files.

options.py has the options of each task. all_tasks.py creates a task from its options.
"""
