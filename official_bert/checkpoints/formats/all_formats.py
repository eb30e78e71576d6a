"""The list of checkpoint formats, in the order in which `open_model` tries them to recognize a checkpoint."""

from official_bert.checkpoints.formats import hugging_face, keras_hub, model_garden, own, saved_model, tf1

FORMATS = {each.FORMAT.name: each.FORMAT for each in (hugging_face, keras_hub, tf1, own, model_garden, saved_model)}
