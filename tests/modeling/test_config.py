import dataclasses
import json
import re

import keras
import pytest

import official_bert_cli
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from tests.make import ROOT, assert_rejected, slow_after, write_text

MODELS = {path.stem: BertConfig.from_json_file(str(path)) for path in sorted(ROOT.glob("configs/models/*.json"))}

WIDTHS = (128, 256, 512, 768)  # of the miniatures
# Parameters of encoder and pooler, as published with the releases.
PUBLISHED = {"uncased_L-2_H-128_A-2": 4_385_920, "uncased_L-4_H-256_A-4": 11_170_560}
PUBLISHED |= {"uncased_L-4_H-512_A-8": 28_763_648, "uncased_L-8_H-512_A-8": 41_373_184}
PUBLISHED |= {"uncased_L-12_H-768_A-12": 109_482_240, "uncased_L-24_H-1024_A-16": 335_141_888}
VOCAB_SIZES = {"uncased": 30_522, "cased": 28_996, "chinese": 21_128, "multi_cased": 119_547, "multilingual": 105_879}


def test_all_released_models_have_the_published_sizes():
    others = {
        "uncased_L-24_H-1024_A-16",
        "cased_L-24_H-1024_A-16",
        *(f"{name}_L-12_H-768_A-12" for name in VOCAB_SIZES),
    }
    names = {f"uncased_L-{layers}_H-{width}_A-{width // 64}" for layers in range(2, 13, 2) for width in WIDTHS}
    assert MODELS.keys() == names | others
    for name, config in MODELS.items():
        layers, width, heads = map(int, re.findall(r"-(\d+)", name))
        sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
        vocab_size = VOCAB_SIZES[name.partition("_L-")[0]]
        assert config == BertConfig(vocab_size=vocab_size, intermediate_size=4 * width, **sizes)


@pytest.mark.parametrize("name", slow_after(3, PUBLISHED))
def test_models_have_the_exact_number_of_parameters(name: str, monkeypatch: pytest.MonkeyPatch):
    # Weights are counted without creating them: a hundred million random numbers take seconds.
    monkeypatch.setattr(keras.initializers.TruncatedNormal, "__call__", lambda _, shape, dtype: keras.ops.zeros(shape))
    config = MODELS[name]
    # Layers of equal shape have equal counts, so a model of one block is enough and saves memory.
    shallow = build_encoder(dataclasses.replace(config, num_hidden_layers=1))
    block = sum(layer.count_params() for layer in shallow.layers if layer.name.startswith("layer_0_"))
    assert shallow.count_params() + (config.num_hidden_layers - 1) * block == PUBLISHED[name]


@pytest.mark.parametrize(("values", "names"), [
    ({"hidden_size": 10, "num_attention_heads": 3}, ("hidden_size", 10, "num_attention_heads", 3)),
    *[({name: value}, (name, repr(value), *expected)) for name, value, *expected in (
        ("vocab_size", 0, 1), ("vocab_size", "many", 1), ("num_hidden_layers", True, 1),
        ("hidden_dropout_prob", 1.0, 0, 1), ("attention_probs_dropout_prob", -0.1, 0, 1),
        ("initializer_range", 0, "positive"), ("initializer_range", None, "number"), ("hidden_act", "swish", "gelu"),
        ("layer_norm_eps", 0.0, "1e-12"), ("layer_norm_eps", 1.0, "1e-12"), ("causal_attention", "yes", "true"),
    )],
    ({"hidden_act": 0}, ("hidden_act", "'0'", "gelu")), ({"hiden_size": 8}, ("'hiden_size'", "hidden_size?")),
    ({"num_hidden_layers": 1_000_000}, ("num_hidden_layers", "1,000,000", "1,000")),
    ({"vocab_size": 10**4000}, ("vocab_size", 18, "10,000,000")), ({"xyz": 8}, ("'xyz'", "hidden_size")),
])  # fmt: skip
def test_impossible_values_are_rejected(values: dict[str, object], names, tmp_path):
    path = write_text(tmp_path / "bert_config.json", json.dumps({"vocab_size": 10, **values}))
    assert_rejected((path, *names), BertConfig.from_json_file, path)


def test_defaults_are_bert_base_and_the_maximum_sizes_are_accepted():
    assert BertConfig(vocab_size=30_522) == MODELS["uncased_L-12_H-768_A-12"]
    large = BertConfig(10**7, 10**5, 1000, 10**4, 10**6, max_position_embeddings=10**6, type_vocab_size=10**4)
    assert large.vocab_size == 10**7


def test_sequences_may_be_as_long_as_the_model_has_positions(tiny_config: BertConfig):
    longest = tiny_config.max_position_embeddings
    tiny_config.check_length(longest)
    assert_rejected(("--max_seq_length", longest + 1, longest), tiny_config.check_length, longest + 1)


def test_files_without_a_configuration_are_rejected(tmp_path):
    for content, *names in (("{", "JSON", "line 1"), ("[]", "list", "object"), ("{}", "vocab_size")):
        path = write_text(tmp_path / "bert_config.json", content)
        assert_rejected((path, *names), BertConfig.from_json_file, path)
    assert_rejected("nowhere.json", BertConfig.from_json_file, "nowhere.json")


def test_activations_are_read_as_the_original_reads_them():
    names = {"GELU": "gelu", "Relu": "relu", "Linear": "linear", "": "linear", None: "linear"}
    for name, expected in names.items():
        assert BertConfig.from_dict({"vocab_size": 10, "hidden_act": name}).hidden_act == expected


def test_configurations_are_restored_from_json_without_keys_that_the_original_lacks(tiny_config: BertConfig):
    for changes in ({}, {"layer_norm_eps": 1e-5}, {"causal_attention": True}):
        config = dataclasses.replace(tiny_config, **changes)
        assert BertConfig.from_dict(json.loads(config.to_json())) == config
        assert config.to_dict().keys() - tiny_config.to_dict().keys() == changes.keys()


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.flagfile")), ids=lambda path: path.stem)
def test_recipes_are_valid_flags_of_pretrain(path):
    text = path.read_text(encoding="utf-8")
    flags = ["--input_file=a", "--output_dir=run", "--do_train"]
    flags += ["--phase2_input_file=b"] if "--phase2_num_train_steps" in text else []
    flags += ["--eval_input_file=c"] if "--eval_steps" in text else []
    (options, *_) = official_bert_cli.load("pretrain").parse([*flags, f"--flagfile={path}"])
    config = BertConfig.from_json_file(str(ROOT / options.bert_config_file))
    for phase in options.phases:
        assert phase.max_seq_length <= config.max_position_embeddings
        assert phase.train_batch_size % ((options.num_tpu_cores or 1) * options.gradient_accumulation_steps) == 0
