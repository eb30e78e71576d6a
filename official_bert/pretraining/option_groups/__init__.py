"""The flags of run_pretraining by what they are about: a dataclass each. `pretraining.options` puts them together.

Importing them needs no TensorFlow.
"""
