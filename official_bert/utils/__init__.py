"""What every other package may use and nothing here knows of: whole files, progress, pages, signals, logs, flags.

Imports only official_bert.errors and official_bert.version. Nothing here imports TensorFlow when it is imported.
"""
