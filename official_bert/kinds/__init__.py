"""The kinds of task that a model can be fine-tuned for, such as classification, tagging or question answering.

Each kind is a folder, named as in the "kind" entry of task.json. Its spec.py has the examples, features, predictions
and scores, its model.py the Keras layers and loss, and its graph.py the TensorFlow functions of a SavedModel. The
modules in this folder are shared by several kinds.
"""
