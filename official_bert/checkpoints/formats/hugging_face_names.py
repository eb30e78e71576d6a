"""Tables from variable paths and parts (encoder, heads) to Hugging Face's names of tensors and classes.

Files of transformers' TensorFlow classes (TFBertModel and similar, removed in version 5) name the same layers
differently; hugging_face_files.py converts these names to PyTorch's. Their dense kernels are stored as in Keras.
PyTorch stores them transposed.
"""

import dataclasses
from collections.abc import Collection

from official_bert.checkpoints.checkpoint import (
    ENCODER,
    MASKED_LM,
    MULTIPLE_CHOICE,
    NEXT_SENTENCE,
    POOLED_HEADS,
    POOLER,
    QUESTION_ANSWERING,
    SEQUENCE_CLASSIFIER,
    TOKEN_CLASSIFIER,
    build_names,
)
from official_bert.checkpoints.tensors import Naming

# Hugging Face's names, by layer or variable of our models (see `build_names`). {} is the number of a block.
_TABLE = {
    "word_embeddings": "bert.embeddings.word_embeddings",
    "token_type_embeddings": "bert.embeddings.token_type_embeddings",
    "position_embeddings": "bert.embeddings.position_embeddings",
    "embeddings_layer_norm": "bert.embeddings.LayerNorm",
    "layer_{}_attention_query": "bert.encoder.layer.{}.attention.self.query",
    "layer_{}_attention_key": "bert.encoder.layer.{}.attention.self.key",
    "layer_{}_attention_value": "bert.encoder.layer.{}.attention.self.value",
    "layer_{}_attention_output": "bert.encoder.layer.{}.attention.output.dense",
    "layer_{}_attention_layer_norm": "bert.encoder.layer.{}.attention.output.LayerNorm",
    "layer_{}_intermediate": "bert.encoder.layer.{}.intermediate.dense",
    "layer_{}_output": "bert.encoder.layer.{}.output.dense",
    "layer_{}_output_layer_norm": "bert.encoder.layer.{}.output.LayerNorm",
    "pooler": "bert.pooler.dense",
    "masked_lm_transform": "cls.predictions.transform.dense",
    "masked_lm_layer_norm": "cls.predictions.transform.LayerNorm",
    "masked_lm_output/bias": "cls.predictions.bias",
    "next_sentence": "cls.seq_relationship",
    "question_answering": "qa_outputs",
    # These three share names (see CLASSIFIERS). A model has at most one of them, according to its class.
    "sequence_classifier": "classifier",
    "token_classifier": "classifier",
    "multiple_choice": "classifier",
}
SUFFIXES = {"embeddings": ".weight", "kernel": ".weight", "bias": ".bias", "gamma": ".weight", "beta": ".bias"}
NAMES = build_names(_TABLE, SUFFIXES)
# The heads of each class.
HEADS: dict[str, set[str]] = {
    "BertModel": set(),
    "BertForPreTraining": {MASKED_LM, NEXT_SENTENCE},
    "BertForMaskedLM": {MASKED_LM},
    "BertForNextSentencePrediction": {NEXT_SENTENCE},
    "BertForSequenceClassification": {SEQUENCE_CLASSIFIER},
    "BertForMultipleChoice": {MULTIPLE_CHOICE},
    "BertForTokenClassification": {TOKEN_CLASSIFIER},
    "BertForQuestionAnswering": {QUESTION_ANSWERING},
}
# The heads that have the same names in a file.
CLASSIFIERS = {SEQUENCE_CLASSIFIER, TOKEN_CLASSIFIER, MULTIPLE_CHOICE}
# Tensors that are not weights, or copies of others.
_IGNORED = {
    "of numbers that old versions kept": r"bert\.embeddings\.(position_ids|token_type_ids)",
    "of the output layer's copies (of the word embeddings, of its bias)": r"cls\.predictions\.decoder\.(weight|bias)",
}
# Copies that must equal their originals, because our output layer shares them.
TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}

PYTORCH = Naming(
    NAMES,
    transposed=".*/kernel",  # PyTorch stores the matrices of dense layers as [out, in].
    ignored=_IGNORED,
    foreign={
        "of heads or programs that BERT does not have": (
            r"(?!(bert\.(embeddings|encoder|pooler)|cls\.(predictions|seq_relationship))\.).*"
        )
    },
)
TENSORFLOW = dataclasses.replace(PYTORCH, transposed="")


def find_class(parts: Collection[str]) -> str | None:
    """Returns the class with exactly these parts (encoder, pooler, heads), or None. Some heads need no pooler."""
    heads = set(parts) - {ENCODER, POOLER}
    if POOLER not in parts and heads & {NEXT_SENTENCE, *POOLED_HEADS}:
        return None
    return next((name for name, each in HEADS.items() if each == heads), None)
