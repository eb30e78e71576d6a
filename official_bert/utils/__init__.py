"""What every other package may use and nothing here knows of: whole files, progress, pages, signals, logs, flags.

Every other package may import it. Nothing here imports TensorFlow when it is imported.
"""
