"""BERT (Devlin et al., arXiv:1810.04805) on TensorFlow 2 and Keras 3. Importing the package does nothing."""

__version__ = "0.1.0"
