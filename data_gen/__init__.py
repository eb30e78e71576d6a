"""From text to the TFRecord files that BERT is pre-trained on.

It stands beside the library: it imports data, errors, modeling, tokenization and utils of official_bert, and nothing of
official_bert imports it. `options` has the flags. Above them stands `text`; above that `rules` and `vocabulary`; above
these `pipelines` and `inspection`; and above all `commands`. A package imports only what stands below it.
"""
