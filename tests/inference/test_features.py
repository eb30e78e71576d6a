import dataclasses
import functools
import gzip
import itertools
import json
import pathlib

import keras
import numpy as np
import pyarrow.parquet
import pytest

import official_bert
from official_bert.checkpoints.loading import Loaded
from official_bert.commands import FEATURES
from official_bert.errors import UserError
from official_bert.inference import feature_extraction, feature_files
from official_bert.inference.features import FeatureExtractor
from official_bert.inference.options import FeatureOptions
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.runs.locks import lock_file
from official_bert.tokenization.exact import FullTokenizer
from official_bert.utils import tables
from tests import make, stored_texts
from tests.make import refusal, write_run, write_text

TEXTS = ["the cat sat on the mat", "", "Unaffable cats, sunning .", "dog ||| the cat", "ran " * 40]


CONFIG = make.tiny_config()


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return Loaded(build_encoder(CONFIG, seed=0), CONFIG, FullTokenizer.from_vocab(make.VOCAB))


@functools.cache
def build_model_with_all_layers(encoder: keras.Model) -> keras.Model:
    """Returns a copy of the encoder that returns the outputs of all layers."""
    every = build_encoder(CONFIG, return_all_layers=True)
    every.set_weights(encoder.get_weights())
    return every


def compute_layers(loaded: Loaded, text: str) -> list[np.ndarray]:
    """Returns the outputs of all layers for one text, without batching."""
    encoder = build_model_with_all_layers(loaded.model)
    first, _, second = text.partition(" ||| ")
    tokens = ["[CLS]", *loaded.tokenizer.tokenize(first), "[SEP]"]
    segments = [0] * len(tokens)
    if second:
        more = [*loaded.tokenizer.tokenize(second), "[SEP]"]
        tokens, segments = tokens + more, segments + [1] * len(more)
    ids = loaded.tokenizer.convert_tokens_to_ids(tokens)
    inputs = {"input_ids": [ids], "input_mask": [[1] * len(ids)], "segment_ids": [segments]}
    return [np.asarray(layer[0]) for layer in encoder({k: np.array(v) for k, v in inputs.items()})["encoder_outputs"]]


def test_every_token_has_vectors_of_the_requested_layers(loaded: Loaded):
    extractor = FeatureExtractor(loaded, layers=[-1, 1], max_seq_length=32, batch_size=2)
    found = list(extractor.extract(TEXTS[:4]))
    assert [features.text for features in found] == TEXTS[:4]
    for features in found:
        first, last = compute_layers(loaded, features.text)
        assert features.values.shape == (len(features.tokens), 2, 8)
        np.testing.assert_allclose(features.values[:, 0], last, atol=1e-5)
        np.testing.assert_allclose(features.values[:, 1], first, atol=1e-5)
        assert not features.is_truncated
        for token, start, end in zip(features.tokens, features.starts, features.ends, strict=True):
            if start < 0:
                assert token in ("[CLS]", "[SEP]")
            elif token != "[UNK]":
                assert features.text[start:end].lower() == token.removeprefix("##")


def test_pooling_takes_all_tokens_but_no_padding(loaded: Loaded):
    for pooling, pool in (("cls", lambda x: x[0]), ("mean", lambda x: x.mean(0)), ("max", lambda x: x.max(0))):
        found = list(FeatureExtractor(loaded, [-1], pooling, max_seq_length=32).extract(TEXTS[:4]))
        for features in found:
            np.testing.assert_allclose(features.values[0], pool(compute_layers(loaded, features.text)[-1]), atol=1e-5)


def test_words_get_the_mean_of_their_pieces(loaded: Loaded):
    extractor = FeatureExtractor(loaded, [2], align="words", max_seq_length=32)
    empty, words = extractor.extract(["", "Unaffable  cat"])
    assert (words.tokens, words.starts, words.ends) == (["Unaffable", "cat"], [0, 11], [9, 14])
    last = compute_layers(loaded, words.text)[-1]
    np.testing.assert_allclose(words.values[:, 0], [last[1:4].mean(axis=0), last[4]], atol=1e-5)
    assert empty.values.shape == (0, 1, 8)


@pytest.mark.parametrize("max_seq_length", [32, 7])
def test_given_words_get_one_vector_each(max_seq_length: int, loaded: Loaded):
    words = ["Unaffable", "cat-sat", "\u200b", "ran"]
    extractor = FeatureExtractor(loaded, [2], align="words", max_seq_length=max_seq_length, is_split_into_words=True)
    (features,) = extractor.extract([words])
    pieces = [loaded.tokenizer.tokenize(word) or ["[UNK]"] for word in words]
    tokens = [*["[CLS]", *itertools.chain(*pieces)][: max_seq_length - 1], "[SEP]"]
    ids = np.array([loaded.tokenizer.convert_tokens_to_ids(tokens)])
    inputs = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    vectors = np.asarray(loaded.model(inputs)["sequence_output"][0])[1:-1]
    ends = np.minimum(np.cumsum([len(each) for each in pieces]), len(vectors))
    spans = [(start, end) for start, end in itertools.pairwise([0, *ends]) if end > start]
    assert features.tokens == words[: len(spans)]
    assert [
        features.text[start:end] for start, end in zip(features.starts, features.ends, strict=True)
    ] == features.tokens
    expected = [vectors[start:end].mean(axis=0) for start, end in spans]
    np.testing.assert_allclose(features.values[:, 0], expected, atol=1e-5)
    assert features.is_truncated == (max_seq_length == 7)


def test_lists_of_words_are_read_from_their_column(tmp_path: pathlib.Path):
    def read(content: str) -> list:
        path = write_text(tmp_path / "a.jsonl", content)
        return list(feature_extraction.read_texts(path, {}, is_split_into_words=True))

    assert read('{"words": ["the", "cat"]}\n{"words": []}\n') == [["the", "cat"], []]
    assert 'a.jsonl, line 2: words is "the cat"' in refusal(read, '{"words": ["a"]}\n{"words": "the cat"}\n')


def test_layer_0_is_the_output_of_the_embeddings(loaded: Loaded):
    (features,) = FeatureExtractor(loaded, [0, -1], max_seq_length=32).extract(["the cat"])
    ids = np.array([loaded.tokenizer.convert_tokens_to_ids(features.tokens)])
    weights = {variable.path: variable.numpy() for variable in loaded.model.variables}
    summed = (
        weights["word_embeddings/embeddings"][ids[0]]
        + weights["position_embeddings/embeddings"][: ids.size]
        + weights["token_type_embeddings/embeddings"][0]
    )
    normalized = (summed - summed.mean(-1, keepdims=True)) / np.sqrt(summed.var(-1, keepdims=True) + 1e-12)
    np.testing.assert_allclose(features.values[:, 0], normalized, atol=1e-5)


def test_default_length_is_what_the_model_can_take(loaded: Loaded):
    assert FeatureExtractor(loaded, [1]).max_seq_length == 32
    larger = build_encoder(make.tiny_config(max_position_embeddings=200), seed=0)
    other = Loaded(larger, make.tiny_config(max_position_embeddings=200), loaded.tokenizer)
    assert FeatureExtractor(other, [1]).max_seq_length == 128


def test_too_long_texts_are_truncated_and_counted(loaded: Loaded):
    extractor = FeatureExtractor(loaded, [-1], max_seq_length=6)
    short, long, pair = extractor.extract(["the cat", "the cat sat on the mat", "the cat ||| sat on the mat"])
    assert [short.is_truncated, long.is_truncated, pair.is_truncated] == [False, True, True]
    assert long.tokens == "[CLS] the cat sat on [SEP]".split()
    assert pair.tokens == "[CLS] the cat [SEP] sat [SEP]".split()


@pytest.mark.parametrize(("arguments", "message"), [
    ({"layers": [3]}, "layers are .* from 0 to 2, or from -2 to -1"),
    ({"layers": [-1, 2]}, r"layers are \[-1, 2\].* \(-1 is 2\)"),
    ({"layers": [-3]}, "layers are .* from 0 to 2"),
    ({"layers": []}, "layers are .* from 0 to 2"),
    ({"layers": [1], "max_seq_length": 33}, "max_seq_length is 33; it must be from 4 to 32"),
    ({"layers": [1], "pooling": "cls", "align": "words", "max_seq_length": 8}, "align='words'"),
    ({"layers": [1], "max_seq_length": 8, "batch_size": 0}, "batch_size is 0"),
])  # fmt: skip
def test_invalid_options_are_rejected(arguments: dict, message: str, loaded: Loaded):
    with pytest.raises(UserError, match=message):
        FeatureExtractor(loaded, **arguments)


def written(path: pathlib.Path, format: str, loaded: Loaded, pooling: str = "none") -> list:
    extractor = FeatureExtractor(loaded, [-1, 1], pooling, max_seq_length=32, batch_size=2)
    features = list(extractor.extract(TEXTS))
    with feature_files.open_writer(str(path), format, extractor, pooling) as add:
        for each in features:
            add(each)
    return features


def test_npy_file_holds_all_tokens_and_jsonl_file_lists_them(loaded: Loaded, tmp_path: pathlib.Path):
    features = written(tmp_path / "a.npy", "npy", loaded)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.concatenate([each.values for each in features]))
    lines = [json.loads(line) for line in (tmp_path / "a.npy.tokens.jsonl").read_text().splitlines()]
    assert [line["tokens"] for line in lines] == [each.tokens for each in features]
    pooled = written(tmp_path / "b.npy", "npy", loaded, "mean")
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), np.stack([each.values for each in pooled]))


@pytest.mark.parametrize("pooling", ["none", "max"])
def test_parquet_and_json_lines_hold_the_same(pooling: str, loaded: Loaded, tmp_path: pathlib.Path):
    features = written(tmp_path / "a.parquet", "parquet", loaded, pooling)
    written(tmp_path / "a.jsonl", "jsonl", loaded, pooling)
    table = pyarrow.parquet.read_table(tmp_path / "a.parquet").to_pylist()
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    for number, (row, line, each) in enumerate(zip(table, lines, features, strict=True)):
        assert (row["text"], line["text"], line["index"]) == (each.text, each.text, number)
        for place, layer in enumerate((-1, 1)):
            np.testing.assert_array_equal(np.array(row[f"layer_{layer}"], np.float32), each.values[..., place, :])
            np.testing.assert_allclose(line["layers"][str(layer)], each.values[..., place, :], atol=1e-6)
        for name in ("tokens", "starts", "ends"):
            assert row.get(name, []) == line.get(name, []) == getattr(each, name)


def test_original_format_is_written(loaded: Loaded, tmp_path: pathlib.Path):
    features = written(tmp_path / "a.jsonl", "original", loaded)
    line = json.loads((tmp_path / "a.jsonl").read_text().splitlines()[3])
    assert set(line) == {"linex_index", "features"}
    assert line["linex_index"] == 3
    assert [token["token"] for token in line["features"]] == "[CLS] dog [SEP] the cat [SEP]".split()
    assert [layer["index"] for layer in line["features"][0]["layers"]] == [-1, 1]
    values = line["features"][1]["layers"][0]["values"]
    assert values == features[3].values[1, 0].astype(float).round(6).tolist()


def test_a_write_that_fails_leaves_nothing(loaded: Loaded, tmp_path: pathlib.Path):
    extractor = FeatureExtractor(loaded, [-1], max_seq_length=32)
    for format in ("npy", "parquet", "jsonl", "original"):
        with (
            pytest.raises(AttributeError),
            feature_files.open_writer(str(tmp_path / "out"), format, extractor, "none") as add,
        ):
            [add(each) for each in [*extractor.extract(["the cat"]), None]]
    assert list(tmp_path.iterdir()) == []


def test_format_is_detected_by_the_extension():
    assert feature_files.detect_format("a/b.npy") == "npy"
    assert feature_files.detect_format("b.txt", "original") == "original"
    assert "pass --output_format" in refusal(feature_files.detect_format, "b.txt")


def test_the_command_extracts_from_a_checkpoint(tiny_config: BertConfig, vocab_file: str, tmp_path: pathlib.Path):
    model = build_pretraining_model(tiny_config, seed=0)
    folder = write_run(tmp_path / "run", model, tiny_config, vocab_file)
    text = write_text(tmp_path / "a.txt", "\r\n".join(TEXTS) + "\n")
    flags = [
        f"--init={folder}", f"--input_file={text}", "--layers=-1,1", f"--output_file={tmp_path / 'a.npy'}",
        "--pooling=mean", "--max_seq_length=16",
    ]  # fmt: skip
    with lock_file(str(tmp_path / "a.npy"), "output_file"), pytest.raises(UserError, match="is in use"):
        feature_extraction.write_features(FEATURES.parse(flags)[0])
    said = feature_extraction.write_features(FEATURES.parse(flags)[0])
    assert "Wrote the vectors of 5 texts" in said
    assert "truncated to 16 tokens: 1" in said
    extractor = FeatureExtractor(official_bert.load(folder), [-1, 1], "mean", max_seq_length=16)
    expected = np.stack([each.values for each in extractor.extract(TEXTS)])
    np.testing.assert_allclose(np.load(tmp_path / "a.npy"), expected, atol=1e-6)


def test_a_table_is_read_as_predict_reads_it(tmp_path: pathlib.Path):
    def texts(name: str, content: str | bytes, trained: dict | None = None) -> list:
        return list(feature_extraction.read_texts(write_text(tmp_path / name, content), trained or {}))

    assert texts("a.csv", 'label,text\n1,"the cat, sat"\n0,"a\ndog"\n') == [["the cat, sat"], ["a\ndog"]]
    assert texts("a.TSV", "text\ttext_pair\nthe cat\ta ||| b\n") == [["the cat", "a ||| b"]]
    assert texts("a.jsonl", '{"text": "the cat"}\n') == [["the cat"]]
    assert texts("a.txt", "text,label\n\nthe cat") == ["text,label", "", "the cat"]  # one text per line
    for store in stored_texts.STORED.values():
        path = store(tmp_path, ["the cat", "sat"])
        assert list(feature_extraction.read_texts(path, {})) == [["the cat"], ["sat"]]
    assert texts("a.gz", gzip.compress(b"the cat\n sat")) == ["the cat", " sat"]
    assert texts("a.txt", b"\xef\xbb\xbfthe cat\r\n") == ["the cat"]
    assert "a.csv, line 1: no column text among words;" in refusal(texts, "a.csv", "words\nthe cat\n")
    assert "a.txt, line 2: byte 0xe9 at column 1 is not UTF-8" in refusal(texts, "a.txt", b"a\n\xe9\n")
    rows = '{"text": "the cat"}\n{"text": "the dog", "text_pair": "ran"}\n'
    assert "a.jsonl, line 2: it has 'text_pair', but the first row does not" in refusal(texts, "a.jsonl", rows)
    table = {"columns": ["no", "one", "two"], "text_column": "one", "text_pair_column": "two"}
    trained = {"pair": True, "table": table}
    assert texts("a.csv", "1,the cat,sat\n2,a,dog\n", trained) == [["the cat", "sat"], ["a", "dog"]]
    assert texts("a.csv", "text,text_pair\nthe cat,sat\n", {"pair": False}) == [["the cat"]]


def test_list_elements_are_a_text_or_a_pair(loaded: Loaded):
    extractor = FeatureExtractor(loaded, [-1], max_seq_length=16)
    line, alone, pair = extractor.extract(["the cat ||| sat", ["the cat ||| sat"], ["the cat", "sat"]])
    assert alone.tokens == ["[CLS]", "the", "cat", "[UNK]", "[UNK]", "[UNK]", "sat", "[SEP]"]
    assert dataclasses.replace(pair, values=line.values) == line
    np.testing.assert_allclose(pair.values, line.values, atol=1e-6)


def test_too_long_line_is_reported(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "MAX_CHARACTERS", 50)
    (tmp_path / "in.txt").write_text("a" * 50 + "\n" + "b" * 51 + "\n")
    lines = feature_extraction.read_texts(str(tmp_path / "in.txt"), {})
    assert next(lines) == "a" * 50
    with pytest.raises(UserError, match="in.txt, line 2: text has 51 characters; expected at most 50"):
        next(lines)


@pytest.mark.parametrize("output", ["./a.npy", "b.npy", "vocab.txt"])
def test_inputs_are_never_overwritten(output: str, tmp_path: pathlib.Path):
    for name in ("a.npy", "b.npy.tokens.jsonl", "vocab.txt"):
        (tmp_path / name).write_text("a text\n")
    source = "b.npy.tokens.jsonl" if output == "b.npy" else "a.npy"
    options = FeatureOptions(
        "no checkpoint", f"{tmp_path}/{source}", f"{tmp_path}/{output}", "npy", vocab_file=f"{tmp_path}/vocab.txt"
    )
    with pytest.raises(UserError, match="--output_file would write .* which is an input"):
        feature_extraction.write_features(options)
    assert (tmp_path / source).read_text() == "a text\n"
