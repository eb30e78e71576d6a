"""What is learned: a Task reads its data, turns them into features, decodes predictions and scores them.

options.py has the options of each task, all_tasks.py makes a task from them.
"""
