"""Hugging Face's names of tensors and classes, by ours."""

from official_bert.checkpoints.checkpoint import (
    ENCODER,
    MASKED_LM,
    MULTIPLE_CHOICE,
    NEXT_SENTENCE,
    POOLER,
    QUESTION_ANSWERING,
    SEQUENCE_CLASSIFIER,
    TOKEN_CLASSIFIER,
)
from official_bert.checkpoints.tensors import Layout

# Hugging Face's names, by ours; {} is the number of a block.
NAMES = {
    "word_embeddings/embeddings": "bert.embeddings.word_embeddings.weight",
    "token_type_embeddings/embeddings": "bert.embeddings.token_type_embeddings.weight",
    "position_embeddings/embeddings": "bert.embeddings.position_embeddings.weight",
    "embeddings_layer_norm/gamma": "bert.embeddings.LayerNorm.weight",
    "embeddings_layer_norm/beta": "bert.embeddings.LayerNorm.bias",
    "layer_{}_attention_query/kernel": "bert.encoder.layer.{}.attention.self.query.weight",
    "layer_{}_attention_query/bias": "bert.encoder.layer.{}.attention.self.query.bias",
    "layer_{}_attention_key/kernel": "bert.encoder.layer.{}.attention.self.key.weight",
    "layer_{}_attention_key/bias": "bert.encoder.layer.{}.attention.self.key.bias",
    "layer_{}_attention_value/kernel": "bert.encoder.layer.{}.attention.self.value.weight",
    "layer_{}_attention_value/bias": "bert.encoder.layer.{}.attention.self.value.bias",
    "layer_{}_attention_output/kernel": "bert.encoder.layer.{}.attention.output.dense.weight",
    "layer_{}_attention_output/bias": "bert.encoder.layer.{}.attention.output.dense.bias",
    "layer_{}_attention_layer_norm/gamma": "bert.encoder.layer.{}.attention.output.LayerNorm.weight",
    "layer_{}_attention_layer_norm/beta": "bert.encoder.layer.{}.attention.output.LayerNorm.bias",
    "layer_{}_intermediate/kernel": "bert.encoder.layer.{}.intermediate.dense.weight",
    "layer_{}_intermediate/bias": "bert.encoder.layer.{}.intermediate.dense.bias",
    "layer_{}_output/kernel": "bert.encoder.layer.{}.output.dense.weight",
    "layer_{}_output/bias": "bert.encoder.layer.{}.output.dense.bias",
    "layer_{}_output_layer_norm/gamma": "bert.encoder.layer.{}.output.LayerNorm.weight",
    "layer_{}_output_layer_norm/beta": "bert.encoder.layer.{}.output.LayerNorm.bias",
    "pooler/kernel": "bert.pooler.dense.weight",
    "pooler/bias": "bert.pooler.dense.bias",
    "masked_lm_transform/kernel": "cls.predictions.transform.dense.weight",
    "masked_lm_transform/bias": "cls.predictions.transform.dense.bias",
    "masked_lm_layer_norm/gamma": "cls.predictions.transform.LayerNorm.weight",
    "masked_lm_layer_norm/beta": "cls.predictions.transform.LayerNorm.bias",
    "masked_lm_output/bias": "cls.predictions.bias",
    "next_sentence/kernel": "cls.seq_relationship.weight",
    "next_sentence/bias": "cls.seq_relationship.bias",
    "question_answering/kernel": "qa_outputs.weight",
    "question_answering/bias": "qa_outputs.bias",
    # Of these three, which share names, a model has at most one; its class says which.
    "sequence_classifier/kernel": "classifier.weight",
    "sequence_classifier/bias": "classifier.bias",
    "token_classifier/kernel": "classifier.weight",
    "token_classifier/bias": "classifier.bias",
    "multiple_choice/kernel": "classifier.weight",
    "multiple_choice/bias": "classifier.bias",
}
CLASSIFIERS = {
    SEQUENCE_CLASSIFIER: "BertForSequenceClassification",
    TOKEN_CLASSIFIER: "BertForTokenClassification",
    MULTIPLE_CHOICE: "BertForMultipleChoice",
}
# Which class has which parts.
CLASSES = {
    frozenset({ENCODER}): "BertModel",
    frozenset({ENCODER, POOLER}): "BertModel",
    frozenset({ENCODER, POOLER, MASKED_LM, NEXT_SENTENCE}): "BertForPreTraining",
    frozenset({ENCODER, MASKED_LM}): "BertForMaskedLM",
    frozenset({ENCODER, POOLER, MASKED_LM}): "BertForMaskedLM",
    frozenset({ENCODER, POOLER, NEXT_SENTENCE}): "BertForNextSentencePrediction",
    frozenset({ENCODER, POOLER, SEQUENCE_CLASSIFIER}): CLASSIFIERS[SEQUENCE_CLASSIFIER],
    frozenset({ENCODER, POOLER, MULTIPLE_CHOICE}): CLASSIFIERS[MULTIPLE_CHOICE],
    frozenset({ENCODER, TOKEN_CLASSIFIER}): CLASSIFIERS[TOKEN_CLASSIFIER],
    frozenset({ENCODER, POOLER, TOKEN_CLASSIFIER}): CLASSIFIERS[TOKEN_CLASSIFIER],
    frozenset({ENCODER, QUESTION_ANSWERING}): "BertForQuestionAnswering",
    frozenset({ENCODER, POOLER, QUESTION_ANSWERING}): "BertForQuestionAnswering",
}
# The heads that a class must have; without its pooler or in another class a model is still whole.
HEADS = {name_of_class: parts - {ENCODER, POOLER} for parts, name_of_class in CLASSES.items()}
# What is no weight, or no other one.
IGNORED = {
    "of numbers that old versions kept": r"bert\.embeddings\.(position_ids|token_type_ids)",
    "of the output layer's copies (of the word embeddings, of its bias)": r"cls\.predictions\.decoder\.(weight|bias)",
}
# Tensors that must equal others: our output layer shares them.
TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


def layout(name: str, shape: tuple[int, ...]) -> Layout:
    """How the tensor of our name and shape is stored: matrices of dense layers as [out, in]."""
    transposed = name.endswith("/kernel")
    return Layout(transposed, shape[::-1] if transposed else shape)
