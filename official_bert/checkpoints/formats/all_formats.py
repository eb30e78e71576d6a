"""The list of checkpoint formats, in the order in which a path is asked whether it holds one."""

from official_bert.checkpoints.formats import hugging_face, keras_hub, model_garden, own, tf1

FORMATS = {
    each.name: each for each in (hugging_face.FORMAT, keras_hub.FORMAT, tf1.FORMAT, own.FORMAT, model_garden.FORMAT)
}
