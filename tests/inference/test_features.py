import functools
import gzip
import json
import pathlib
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.parquet
import pytest

import official_bert
from official_bert.checkpoints.loading import ModelAndTokenizer
from official_bert.commands import FEATURES
from official_bert.inference import feature_extraction, feature_extractor, on_dask, shards, vector_files
from official_bert.inference.feature_extractor import FeatureExtractor, TextVectors
from official_bert.inference.options import FeatureOptions
from official_bert.kinds.names import ENCODER
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.fast.verification import run_functions_eagerly
from official_bert.runs.locks import lock_file
from official_bert.tokenization.exact import FullTokenizer
from official_bert.utils import tables
from tests import make, stored_texts
from tests.make import assert_rejected, write_text

CONFIG, TOKENIZER = make.tiny_config(), FullTokenizer.from_vocab(make.VOCAB)
LOADED = functools.cache(lambda: ModelAndTokenizer(build_encoder(CONFIG, seed=0), CONFIG, TOKENIZER))
TEXTS = ("the cat sat on the mat", "", "Unaffable cats, sunning .", "dog ||| the cat", "ran " * 40)


compile_encoder = functools.cache(feature_extractor._compile_encoder)


@pytest.fixture(autouse=True)
def compile_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles each choice of layers once. Compiling takes most of the time of a test."""
    monkeypatch.setattr(feature_extractor, "_compile_encoder", lambda model, layers: compile_encoder(model, (*layers,)))


def make_extractor(pooling: str = "none", **settings: Any) -> FeatureExtractor:
    return FeatureExtractor(LOADED(), **{"layers": [-1, 1], "max_seq_length": 32, **settings}, pooling=pooling)


def extract_texts(texts: Any, **settings: Any) -> list[TextVectors]:
    return list(make_extractor(**settings).extract(texts))


@functools.cache
def extract(pooling: str = "none") -> list[TextVectors]:
    return extract_texts(TEXTS, pooling=pooling, batch_size=2)


@functools.cache
def build_every_layer() -> Any:
    every = build_encoder(CONFIG, return_all_layers=True)
    every.set_weights(LOADED().model.get_weights())
    return every


def compute_layers(tokens: list[str], num_first: int = 99) -> list[np.ndarray]:
    """Returns the outputs of all blocks for one text or pair, without batching."""
    ids = np.array([TOKENIZER.convert_tokens_to_ids(tokens)])
    segments = (np.arange(len(tokens)) >= num_first)[None].astype(int)
    inputs = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": segments}
    return [np.asarray(layer[0]) for layer in build_every_layer()(inputs)["encoder_outputs"]]


def test_every_token_has_vectors_of_the_requested_layers():
    assert [vectors.text for vectors in extract()] == list(TEXTS)
    assert [vectors.is_truncated for vectors in extract()] == [False] * 4 + [True]
    assert extract()[3].tokens == "[CLS] dog [SEP] the cat [SEP]".split()
    for number, num_first in ((0, 99), (1, 99), (3, 3)):
        vectors = extract()[number]
        first, last = compute_layers(vectors.tokens, num_first)
        np.testing.assert_allclose(vectors.values, np.stack([last, first], axis=1), atol=1e-5)
    for vectors in extract():
        for token, start, end in zip(vectors.tokens, vectors.starts, vectors.ends, strict=True):
            if start < 0:
                assert token in ("[CLS]", "[SEP]")
            elif token != "[UNK]":
                assert vectors.text[start:end].lower() == token.removeprefix("##")


@pytest.mark.parametrize(("pooling", "pool"), [("cls", lambda x: x[0]), ("mean", np.mean), ("max", np.max)])
def test_pooling_takes_all_tokens_but_no_padding(pooling: str, pool: Any):
    for pooled, tokens in zip(extract(pooling), extract(), strict=True):
        expected = tokens.values[0] if pooling == "cls" else pool(tokens.values, axis=0)
        np.testing.assert_allclose(pooled.values, expected, atol=1e-5)


def test_vectors_of_several_layers_are_normalized_after_concatenation():
    for vectors, plain in zip(extract_texts(TEXTS, pooling="mean", normalize=True), extract("mean"), strict=True):
        np.testing.assert_allclose(vectors.values, plain.values / np.linalg.norm(plain.values), atol=1e-5)


@pytest.mark.parametrize(("texts", "expected"), [(5, 5), (1, 2), (1000, 128)])  # at least a batch, at most 64 batches
def test_the_number_of_buffered_texts_is_limited_by_memory(texts: int, expected: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feature_extractor, "_BYTES_AT_A_TIME", texts * 32 * 2 * 8 * 4)
    monkeypatch.setattr(feature_extractor, "_compile_encoder", lambda loaded, layers: None)
    assert make_extractor(batch_size=2).texts_at_a_time == expected


def test_words_get_the_mean_of_their_pieces():
    empty, words = extract_texts(["", "Unaffable  cat"], align="words")
    assert (words.tokens, words.starts, words.ends) == (["Unaffable", "cat"], [0, 11], [9, 14])
    last = compute_layers(["[CLS]", "un", "##aff", "##able", "cat", "[SEP]"])[-1]
    np.testing.assert_allclose(words.values[:, 0], [last[1:4].mean(axis=0), last[4]], atol=1e-5)
    assert empty.values.shape == (0, 2, 8)
    assert vector_files._make_row(0, empty, (-1, 1))["tokens"] == []


@pytest.mark.parametrize(("max_seq_length", "spans"), [(32, [(1, 4), (4, 7), (7, 8), (8, 9)]), (7, [(1, 4), (4, 6)])])
def test_texts_split_into_words_get_one_vector_per_word(max_seq_length: int, spans: list[tuple[int, int]]):
    words = ["Unaffable", "cat-sat", "\u200b", "ran"]
    (vectors,) = extract_texts([words], align="words", max_seq_length=max_seq_length, is_split_into_words=True)
    tokens = "[CLS] un ##aff ##able cat [UNK] sat [UNK] ran".split()[: max_seq_length - 1]
    last = compute_layers([*tokens, "[SEP]"])[-1]
    assert vectors.tokens == words[: len(spans)]
    assert [vectors.text[start:end] for start, end in zip(vectors.starts, vectors.ends, strict=True)] == vectors.tokens
    np.testing.assert_allclose(vectors.values[:, 0], [last[start:end].mean(axis=0) for start, end in spans], atol=1e-5)
    assert vectors.is_truncated == (max_seq_length == 7)


def read_texts(path: pathlib.Path, content: str | bytes, trained: Any = None, **options: Any) -> list[Any]:
    return list(feature_extraction.read_texts(write_text(path, content), trained or {}, **options))


def test_lists_of_words_are_read_from_their_column(tmp_path: pathlib.Path):
    path, read = tmp_path / "a.jsonl", functools.partial(read_texts, is_split_into_words=True)
    assert read(path, '{"words": ["the", "cat"]}\n{"words": []}\n') == [["the", "cat"], []]
    assert_rejected((f"{path}, line 2", "words", '"the cat"'), read, path, '{"words": ["a"]}\n{"words": "the cat"}\n')
    assert_rejected(("words", '["a", 3]'), read, path, '{"words": ["a", 3]}\n')


def test_rows_of_shards_are_counted_without_notes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr("official_bert.checkpoints.loading.load", lambda *_, **__: LOADED())
    monkeypatch.setattr(feature_extractor, "_BATCHES_AT_A_TIME", 1)
    words = make.write_rows(tmp_path / "words.jsonl", [{"words": ["the"]}] * 3)
    table = write_text(tmp_path / "table.csv", "text,other\na,b\nc,d\ne,f\n")
    for path, is_split_into_words in ((words, True), (table, False)):
        flags = {"layers": ["-1", "1"], "batch_size": 1, "is_split_into_words": is_split_into_words}
        options = FeatureOptions("model", path, f"{path}.npy", **flags)
        with lock_file(options.output_file, "output_file"):  # each shard locks only its own file
            assert "the vectors of 2 texts" in feature_extraction.write_vectors(options, shards.Shard(1, 2))
    assert capsys.readouterr().out.count("does not use: other\n") == 1
    missing = FeatureOptions("model", f"{tmp_path}/*.csv", f"{tmp_path}/out.npy")
    assert_rejected((missing.input_file, "--dask"), feature_extraction.write_vectors, missing)


def test_layer_0_is_the_output_of_the_embeddings():
    (vectors,) = extract_texts(["the cat"], layers=[0, -1])
    ids, weights = TOKENIZER.convert_tokens_to_ids(vectors.tokens), make.list_weights(LOADED().model)
    words, positions, types = (weights[f"{name}_embeddings/embeddings"] for name in ("word", "position", "token_type"))
    summed = words[ids] + positions[: len(ids)] + types[0]
    normalized = (summed - summed.mean(-1, keepdims=True)) / np.sqrt(summed.var(-1, keepdims=True) + 1e-12)
    np.testing.assert_allclose(vectors.values[:, 0], normalized, atol=1e-5)


def test_default_length_is_limited_by_the_models_positions(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feature_extractor, "_compile_encoder", lambda loaded, layers: None)
    for positions, expected in ((32, 32), (200, 128)):
        config = make.tiny_config(max_position_embeddings=positions)
        assert FeatureExtractor(ModelAndTokenizer(LOADED().model, config, TOKENIZER), [1]).max_seq_length == expected
    assert FeatureOptions("model", "a", "b").layers == ["-1", "-2", "-3", "-4"]  # as in extract_features.py


def test_too_long_texts_and_pairs_are_truncated():
    texts = ["the cat sat on the mat", "the cat ||| sat on the mat", ["the cat", "sat on the mat"], ["a ||| the"]]
    texts += ["a ||| b ||| c", "the cat sat on"]
    long, line, pair, alone, last, exact = extract_texts(texts, max_seq_length=6)
    assert (last.tokens, exact.is_truncated) == ("[CLS] a [UNK] [SEP] c [SEP]".split(), False)
    assert [each.is_truncated for each in (long, line, alone)] == [True, True, True]
    assert long.tokens == "[CLS] the cat sat on [SEP]".split()
    assert line.tokens == "[CLS] the cat [SEP] sat [SEP]".split()
    assert alone.tokens == "[CLS] a [UNK] [UNK] [UNK] [SEP]".split()  # an element of a list is never a pair
    assert vars(pair) | {"values": 0} == vars(line) | {"values": 0}
    np.testing.assert_allclose(pair.values, line.values, atol=1e-6)


@pytest.mark.parametrize(("arguments", "names"), [
    ({"layers": [3]}, ("layers", [3], "0 to 2", "-2 to -1")),
    ({"layers": [-1, 2]}, ("layers", [-1, 2], "repeated")),
    ({"layers": [-3]}, ("layers", [-3], "0 to 2", "--layers=-1,-2")),
    ({"layers": []}, ("layers", [], "0 to 2")),
    *(({"max_seq_length": length}, ("max_seq_length", length, 4, 32)) for length in (3, 33)),
    ({"pooling": "avg"}, ("pooling", "'avg'", "none", "cls", "mean", "max")),
    ({"align": "word"}, ("align", "'word'", "pieces", "words")),
    ({"pooling": "cls", "align": "words"}, ("align='words'", "'cls'")),
    ({"normalize": True}, ("normalize", "pooling")),
    ({"batch_size": 0}, ("batch_size", 0)),
])  # fmt: skip
def test_invalid_options_are_rejected(arguments: dict[str, Any], names: tuple):
    assert_rejected(names, make_extractor, **arguments)


def test_invalid_texts_are_rejected():
    assert_rejected(("texts", "'the cat'"), extract_texts, "the cat")
    for text in (None, [], ["a", "the", "cat"], b"a"):
        assert_rejected(("texts", repr(text), 2), extract_texts, ["a", text])
    for text in ("the cat", ["a", 3]):
        assert_rejected(("is_split_into_words", repr(text)), extract_texts, [["a"], text], is_split_into_words=True)


def write(path: pathlib.Path, format: str, pooling: str = "none") -> Any:
    """Writes the vectors of the texts, and returns the lines of a file of lines."""
    vector_files.write(str(path), format, make_extractor(pooling), extract(pooling))
    return [json.loads(line) for line in path.read_text().splitlines()] if path.suffix == ".jsonl" else None


def test_npy_file_holds_all_tokens_and_jsonl_file_lists_them(tmp_path: pathlib.Path):
    write(tmp_path / "a.npy", "npy")
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.concatenate([each.values for each in extract()]))
    lines = (tmp_path / "a.npy.tokens.jsonl").read_text().splitlines()
    assert [json.loads(line)["tokens"] for line in lines] == [each.tokens for each in extract()]
    write(tmp_path / "b.npy", "npy", "mean")
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), np.stack([each.values for each in extract("mean")]))


@pytest.mark.parametrize("pooling", ["none", "max"])
def test_parquet_and_json_lines_hold_the_same(pooling: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vector_files, "_ROWS_AT_A_TIME", 2)  # three groups
    write(tmp_path / "a.parquet", "parquet", pooling)
    table = pyarrow.parquet.read_table(tmp_path / "a.parquet")
    vector = pyarrow.list_(pyarrow.float32(), CONFIG.hidden_size)
    assert table.schema.field("layer_1").type == (pyarrow.list_(vector) if pooling == "none" else vector)
    lines = write(tmp_path / "a.jsonl", "jsonl", pooling)
    for number, (row, line, each) in enumerate(zip(table.to_pylist(), lines, extract(pooling), strict=True)):
        assert (row["text"], line["text"], line["index"]) == (each.text, each.text, number)
        for place, layer in enumerate((-1, 1)):
            np.testing.assert_array_equal(np.array(row[f"layer_{layer}"], np.float32), each.values[..., place, :])
            assert line["layers"][str(layer)] == each.values[..., place, :].astype(float).round(6).tolist()
        for name in ("tokens", "starts", "ends"):
            assert row.get(name, []) == line.get(name, []) == getattr(each, name)


def test_original_format_is_written(tmp_path: pathlib.Path):
    values = extract()[3].values.astype(float).round(6).tolist()
    tokens = [
        {"token": token, "layers": [{"index": -1, "values": last}, {"index": 1, "values": first}]}
        for token, (last, first) in zip("[CLS] dog [SEP] the cat [SEP]".split(), values, strict=True)
    ]
    assert write(tmp_path / "a.jsonl", "original")[3] == {"linex_index": 3, "features": tokens}


def test_a_failed_write_leaves_no_files(tmp_path: pathlib.Path):
    for format in ("npy", "parquet", "jsonl", "original"):
        with pytest.raises(AttributeError):
            vector_files.write(str(tmp_path / "out"), format, make_extractor(), [extract()[0], None])
    assert list(tmp_path.iterdir()) == []


def test_format_is_detected_by_the_extension():
    for name in ("npy", "parquet", "jsonl"):
        assert vector_files.detect_format(f"a/b.{name}") == name
    assert vector_files.detect_format("b.txt", "original") == "original"
    assert_rejected("b.txt", vector_files.detect_format, "b.txt")
    names = ("--output_format=original", "--pooling=none", "mean")
    assert_rejected(names, vector_files.write, "out", "original", make_extractor("mean"), [])


def test_all_options_of_the_extractor_are_passed_on(monkeypatch: pytest.MonkeyPatch):
    made = mock.Mock()
    monkeypatch.setattr(feature_extraction, "FeatureExtractor", made)
    monkeypatch.setattr("official_bert.checkpoints.loading.load", made.load)
    changes = {"align": "words", "normalize": True, "max_seq_length": 9, "batch_size": 3, "is_split_into_words": True}
    casing = {"vocab_file": "v", "do_lower_case": True, "strip_accents": False}
    feature_extraction.load_extractor(FeatureOptions("m", "a", "b", layers=["0"], pooling="max", **changes, **casing))
    made.load.assert_called_once_with("m", "v", True, strip_accents=False)
    made.assert_called_once_with(made.load.return_value, [0], "max", **changes)


@run_functions_eagerly()  # since each of three extractors would be traced
def test_the_command_extracts_from_a_checkpoint(save_kind, tmp_path: pathlib.Path, capsys):
    folder, output = save_kind(ENCODER), str(tmp_path / "a.npy")
    text = write_text(tmp_path / "a.txt", "\r\n".join(TEXTS) + "\n")
    flags = ["--layers=-1,1", "--pooling=mean", "--max_seq_length=16"]
    (options, _) = FEATURES.parse([f"--init={folder}", f"--input_file={text}", f"--output_file={output}", *flags])
    with lock_file(output, "output_file"):
        assert_rejected(("--output_file", output, "use"), feature_extraction.write_vectors, options)
    said = feature_extraction.write_vectors(options)
    assert "Wrote the vectors of 5 texts" in said
    assert "truncated to 16 tokens: 1" in said
    assert "exists" not in capsys.readouterr().out
    assert feature_extraction.write_vectors(options) == said
    assert f"note: {output} exists" in capsys.readouterr().out
    extractor = FeatureExtractor(official_bert.load(folder), [-1, 1], "mean", max_seq_length=16)
    np.testing.assert_allclose(np.load(output), [each.values for each in extractor.extract(TEXTS)], atol=1e-6)


def test_a_table_is_read_as_predict_reads_it(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    table = {"columns": ["no", "one", "two"], "text_column": "one", "text_pair_column": "two"}
    for name, content, trained, expected in (
        ("a.TSV", "text\ttext_pair\nthe cat\ta ||| b\n", None, [["the cat", "a ||| b"]]),
        ("a.jsonl", "", None, []),
        ("a.txt", b"\xef\xbb\xbftext,label\r\n\r\nthe cat", None, ["text,label", "", "the cat"]),  # one text per line
        ("a.gz", gzip.compress(b"the cat\n sat"), None, ["the cat", " sat"]),
        ("a.csv", "1,the cat,sat\n2,a,dog\n", {"pair": True, "table": table}, [["the cat", "sat"], ["a", "dog"]]),
        ("a.csv", "text,text_pair\nthe cat,sat\n", {"pair": False}, [["the cat"]]),
    ):
        assert read_texts(tmp_path / name, content, trained) == expected
    for store in stored_texts.STORED.values():
        assert list(feature_extraction.read_texts(store(tmp_path, ["the cat", "sat"]), {})) == [["the cat"], ["sat"]]
    monkeypatch.setattr(tables, "MAX_CHARACTERS", 50)
    rows = '{"text": "the cat"}\n{"text": "the dog", "text_pair": "ran"}\n'
    for name, content, line, *names in (
        ("a.csv", "words\nthe cat\n", 1, "'text'", "'words'"),
        ("a.txt", "a\n" + "b" * 51, 2, 51, 50),
        ("a.jsonl", rows, 2, "'text_pair'"),
    ):
        assert_rejected((f"{tmp_path / name}, line {line}", *names), read_texts, tmp_path / name, content)


@pytest.mark.parametrize("output", ["./a.npy", "b.npy", "vocab.txt", "model"])
def test_inputs_are_never_overwritten(output: str, tmp_path: pathlib.Path):
    for name in ("a.npy", "b.npy.tokens.jsonl", "vocab.txt", "model"):
        (tmp_path / name).write_text("a text\n")
    source = tmp_path / ("b.npy.tokens.jsonl" if output == "b.npy" else "a.npy")
    flags = {"output_format": "npy", "vocab_file": f"{tmp_path}/vocab.txt"}
    options = FeatureOptions(f"{tmp_path}/model", str(source), f"{tmp_path}/{output}", **flags)
    assert_rejected(("--output_file", tmp_path, "input"), feature_extraction.write_vectors, options)
    if output in ("vocab.txt", "model"):
        assert_rejected(("--output_file", tmp_path, "input"), on_dask.write_vectors, options, 1, "")
    assert source.read_text() == "a text\n"
