"""A trained model goes on learning from text of one's own: the command adapt, and official_bert.adapt.

It composes what both sides have, and stands above them: records and vocabulary of `data_gen`, weights and pre-training
of `official_bert`. Nothing imports it but the commands, and `official_bert` when `adapt` is first used.
"""
