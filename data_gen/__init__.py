"""Makes the TFRecord files for pre-training from text.

Layers, from bottom to top: `options` (the flags), `text`, `rules` and `vocabulary`, `pipelines` and `inspection`,
`commands`. A package imports only lower layers, and lower packages of official_bert. Within official_bert, only
`adaptation` imports data_gen.
"""
