"""Makes the TFRecord files for pre-training from text.

The packages and modules in layers, from bottom to top: `options` (the flags), `text`, `rules` and `vocabulary`,
`pipelines` and `inspection`, `commands`. Each imports only lower layers, and the lower packages of official_bert.
Within official_bert, only `adaptation` imports data_gen.
"""
