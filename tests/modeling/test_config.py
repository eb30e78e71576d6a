import dataclasses
import json
import pathlib
import typing

import keras
import pytest

from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.pretraining.options import Options
from tests.conftest import ROOT
from tests.make import assert_refused, refusal, write_text

MODELS = sorted((ROOT / "configs" / "models").glob("*.json"))

# Encoder and pooler. The first six counts were published with the releases. The others are computed by the formula
# below.
PUBLISHED = {
    "uncased_L-2_H-128_A-2": 4_385_920,
    "uncased_L-4_H-256_A-4": 11_170_560,
    "uncased_L-4_H-512_A-8": 28_763_648,
    "uncased_L-8_H-512_A-8": 41_373_184,
    "uncased_L-12_H-768_A-12": 109_482_240,
    "uncased_L-24_H-1024_A-16": 335_141_888,
}

# In millions, by number of layers and width, rounded as in the release of the miniatures.
MINIATURES = {
    2: (4.4, 9.6, 22.5, 38.6),
    4: (4.8, 11.2, 28.8, 52.8),
    6: (5.2, 12.8, 35.1, 67.0),
    8: (5.6, 14.3, 41.4, 81.1),
    10: (6.0, 15.9, 47.7, 95.3),
    12: (6.4, 17.5, 54.0, 109.5),
}


def counted_by_hand(config: BertConfig) -> int:
    h, i = config.hidden_size, config.intermediate_size
    embeddings = (config.vocab_size + config.type_vocab_size + config.max_position_embeddings) * h + 2 * h
    block = 4 * (h * h + h) + (h * i + i) + (i * h + h) + 4 * h
    return embeddings + config.num_hidden_layers * block + h * h + h


def test_all_released_sizes_are_there():
    names = {path.stem for path in MODELS}
    widths = (128, 256, 512, 768)
    assert {f"uncased_L-{layers}_H-{width}_A-{width // 64}" for layers in MINIATURES for width in widths} <= names
    assert names >= {
        "uncased_L-24_H-1024_A-16",
        "cased_L-12_H-768_A-12",
        "cased_L-24_H-1024_A-16",
        "chinese_L-12_H-768_A-12",
        "multi_cased_L-12_H-768_A-12",
        "multilingual_L-12_H-768_A-12",
    }
    assert len(names) == 30


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_configuration_has_the_exact_number_of_parameters(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    # Weights are counted without creating them: a hundred million random numbers take seconds.
    monkeypatch.setattr(keras.initializers.TruncatedNormal, "__call__", lambda _, shape, dtype: keras.ops.zeros(shape))
    config = BertConfig.from_json_file(str(path))
    expected = counted_by_hand(config)
    assert PUBLISHED.get(path.stem, expected) == expected
    # Layers of equal shape have equal counts, so a model of one block is enough and saves memory.
    shallow = build_encoder(dataclasses.replace(config, num_hidden_layers=1))
    block = sum(layer.count_params() for layer in shallow.layers if layer.name.startswith("layer_0_"))
    assert shallow.count_params() + (config.num_hidden_layers - 1) * block == expected


@pytest.mark.parametrize("layers", MINIATURES)
def test_miniatures_have_the_published_sizes(layers: int):
    counts = [
        counted_by_hand(BertConfig.from_json_file(str(path)))
        for width in (128, 256, 512, 768)
        for path in MODELS
        if path.stem == f"uncased_L-{layers}_H-{width}_A-{width // 64}"
    ]
    assert tuple(round(count / 1e6, 1) for count in counts) == MINIATURES[layers]


@pytest.mark.parametrize(("name", "vocab"), [
    ("uncased_L-12_H-768_A-12", "bert-base-uncased-vocab.txt"),
    ("cased_L-12_H-768_A-12", "bert-base-cased-vocab.txt"),
    ("chinese_L-12_H-768_A-12", "bert-base-chinese-vocab.txt"),
    ("multi_cased_L-12_H-768_A-12", "bert-base-multilingual-cased-vocab.txt"),
    ("multilingual_L-12_H-768_A-12", "bert-base-multilingual-uncased-vocab.txt"),
])  # fmt: skip
def test_vocabulary_size_is_that_of_the_released_vocabulary(name: str, vocab: str, test_data: pathlib.Path):
    config = BertConfig.from_json_file(str(ROOT / "configs" / "models" / f"{name}.json"))
    assert config.vocab_size == (test_data / "vocab" / vocab).read_bytes().count(b"\n")


def test_released_configuration_with_unused_keys_is_read(test_data: pathlib.Path):
    config = BertConfig.from_json_file(str(test_data / "checkpoints" / "toy_tf1" / "bert_config.json"))
    assert (config.hidden_size, config.vocab_size, config.max_position_embeddings) == (4, 15, 16)


def test_configuration_survives_json(tiny_config: BertConfig):
    assert BertConfig.from_dict(json.loads(tiny_config.to_json())) == tiny_config


@pytest.mark.parametrize(("values", "message"), [
    ({"hidden_size": 10, "num_attention_heads": 3}, "10 is not a multiple of num_attention_heads 3"),
    ({"vocab_size": 0}, "vocab_size is 0"),
    ({"vocab_size": "many"}, "vocab_size is 'many'"),
    ({"num_hidden_layers": True}, "num_hidden_layers is True"),
    ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob is 1.0"),
    ({"attention_probs_dropout_prob": -0.1}, "attention_probs_dropout_prob is -0.1"),
    ({"initializer_range": 0}, "initializer_range is 0"),
    ({"initializer_range": None}, "initializer_range is None"),
    ({"hidden_act": "swish"}, "hidden_act is 'swish'; expected one of gelu"),
    ({"hidden_act": 0}, "hidden_act is '0'; expected one of gelu"),
    ({"layer_norm_eps": 0.0}, "layer_norm_eps is 0.0; expected a small positive number"),
    ({"causal_attention": "yes"}, "causal_attention is 'yes'; expected true or false"),
    ({"hiden_size": 8}, r"unknown key 'hiden_size'.*did you mean 'hidden_size'"),
])  # fmt: skip
def test_impossible_values_are_rejected(values: dict[str, object], message: str):
    assert_refused(message, BertConfig.from_dict, {"vocab_size": 10, **values})


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        ("GELU", "gelu"),
        ("Relu", "relu"),
        ("Linear", "linear"),
        ("", "linear"),
        (None, "linear"),
    ],
)
def test_activations_are_read_as_the_original_reads_them(act: str | None, expected: str):
    assert BertConfig.from_dict({"vocab_size": 10, "hidden_act": act}).hidden_act == expected


@pytest.mark.parametrize(("content", "message"), [
    ("{", "is not valid JSON"),
    ("[]", "contains list; expected a JSON object"),
    ("{}", "has no vocab_size"),
    ('{"vocab_size": 5, "layers": 2}', "unknown key 'layers'"),
])  # fmt: skip
def test_errors_name_the_file(content: str, message: str, tmp_path: pathlib.Path):
    path = write_text(tmp_path / "bert_config.json", content)
    told = refusal(BertConfig.from_json_file, path)
    assert path in told
    assert message in told


def test_missing_file_is_named():
    assert "there is no file nowhere.json" in refusal(BertConfig.from_json_file, "nowhere.json")


def test_epsilon_is_written_where_it_is_not_the_originals():
    assert "layer_norm_eps" not in BertConfig(9).to_dict()
    other = BertConfig(9, layer_norm_eps=1e-5)
    assert BertConfig.from_dict(other.to_dict()) == other


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.flagfile")), ids=lambda path: path.stem)
def test_recipes_are_runs_of_known_flags(path: pathlib.Path):
    kinds = typing.get_type_hints(Options)
    values: dict[str, object] = {"input_file": ["a"], "output_dir": "run", "do_train": True}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("--"):
            name, _, value = line.removeprefix("--").partition("=")
            if not value:
                values[name.removeprefix("no") if name not in kinds else name] = name in kinds
            else:
                kind = next(
                    kind for kind in (int, float, str) if kind in (typing.get_args(kinds[name]) or (kinds[name],))
                )
                values[name] = kind(value)
    assert values.keys() <= kinds.keys()
    if "phase2_num_train_steps" in values:
        values["phase2_input_file"] = ["b"]
    if "eval_steps" in values:
        values["eval_input_file"] = ["c"]
    options = Options(**values)  # type: ignore[arg-type]
    config = BertConfig.from_json_file(str(ROOT / options.bert_config_file))
    for phase in options.phases:
        assert phase.max_seq_length <= config.max_position_embeddings
        assert phase.train_batch_size % ((options.num_tpu_cores or 1) * options.gradient_accumulation_steps) == 0
