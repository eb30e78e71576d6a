"""Names of models and poolings, for option classes. This module imports nothing."""

# The vector of a text: the vector of [CLS], the mean or maximum over its tokens, or the pooler's output.
CLS_POOLING, MEAN, MAX, POOLED = VECTOR_POOLINGS = "cls", "mean", "max", "pooled"

# The models of google-bert on the Hub, with the file in configs/models that has their sizes, without .json.
HUB_MODELS = {
    "bert-base-uncased": "uncased_L-12_H-768_A-12",
    "bert-large-uncased": "uncased_L-24_H-1024_A-16",
    "bert-base-cased": "cased_L-12_H-768_A-12",
    "bert-large-cased": "cased_L-24_H-1024_A-16",
    "bert-base-multilingual-cased": "multi_cased_L-12_H-768_A-12",
    "bert-base-multilingual-uncased": "multilingual_L-12_H-768_A-12",
    "bert-base-chinese": "chinese_L-12_H-768_A-12",
    "bert-large-uncased-whole-word-masking": "uncased_L-24_H-1024_A-16",
    "bert-large-cased-whole-word-masking": "cased_L-24_H-1024_A-16",
}
# Google's releases that have a name in the paper on miniatures (arXiv:1908.08962).
MINIATURES = {
    "bert-tiny": "uncased_L-2_H-128_A-2",
    "bert-mini": "uncased_L-4_H-256_A-4",
    "bert-small": "uncased_L-4_H-512_A-8",
    "bert-medium": "uncased_L-8_H-512_A-8",
}
