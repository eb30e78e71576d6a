from official_bert.kinds.classification.model import build_classifier
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.optimization.finetuning_optimizer import compute_layer_factors


def test_each_layer_s_rate_is_a_share_of_that_of_the_layer_above(tiny_config: BertConfig):
    model = build_classifier(build_encoder(tiny_config), 2)
    factors = compute_layer_factors(model, 2, 0.5)
    of_layer = {path.split("/")[-2]: factor for path, factor in factors.items()}
    assert of_layer["layer_1_output"] == 0.5
    assert of_layer["layer_0_attention_query"] == 0.25
    assert of_layer["word_embeddings"] == of_layer["embeddings_layer_norm"] == 0.125
    assert not {"pooler", "sequence_classifier"} & set(of_layer)
    assert compute_layer_factors(model, 2, 1.0) == {}
