import dataclasses
import functools
import itertools
import json
import pathlib

import numpy as np
import pytest

from official_bert.checkpoints import checkpoint, loading, tensors
from official_bert.checkpoints.formats.all_formats import FORMATS
from official_bert.inference import exports, options
from official_bert.inference.fill_mask import fill_mask, fill_masks, make_predictor, print_candidates
from official_bert.kinds.names import FILL_MASK
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.tokenization.exact import FullTokenizer
from tests.make import VOCAB, WORDS, assert_rejected, tiny_config, write_run, write_vocab


@functools.cache
def load_model() -> loading.ModelAndTokenizer:
    """Returns a model that answers mostly "cat" and "dog" to every input."""
    model = build_pretraining_model(tiny_config(), seed=0)
    bias = next(variable for variable in model.variables if variable.path == "masked_lm_output/bias")
    bias.assign([{"cat": 5.0, "dog": 4.0}.get(word, 0.0) for word in WORDS])
    return loading.ModelAndTokenizer(model, tiny_config(), FullTokenizer.from_vocab(VOCAB))


@pytest.fixture
def model_dir(vocab_file: str, tmp_path: pathlib.Path) -> str:
    return write_run(tmp_path / "run", load_model().model, tiny_config(), vocab_file)


@pytest.mark.parametrize(("words_between", "top_k"), [(3, len(WORDS)), (26, float(len(WORDS)))])
def test_every_mask_gets_its_candidates_best_first(words_between: int, top_k: int):
    loaded = load_model()
    tokens = ["[CLS]", "the", "[MASK]", *["the"] * words_between, "[MASK]", ".", "[SEP]"]
    ids = np.array([loaded.tokenizer.convert_tokens_to_ids(tokens)])
    features = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    outputs = loaded.model({**features, "masked_lm_positions": np.array([[2, words_between + 3]])})
    masks = fill_mask(loaded, f"The [MASK] {'the ' * words_between} [MASK].", top_k)
    for candidates, scores in zip(masks, outputs["masked_lm_logits"][0].numpy(), strict=True):
        assert [candidate.token for candidate in candidates[:2]] == ["cat", "dog"]
        assert [candidate.token for candidate in candidates] == [WORDS[index] for index in np.argsort(-scores)]
        expected = np.sort(np.exp(scores) / np.exp(scores).sum())[::-1]
        np.testing.assert_allclose([candidate.probability for candidate in candidates], expected, rtol=1e-4)


def test_vocabulary_may_have_equal_lines(tmp_path: pathlib.Path):
    tokenizer = FullTokenizer(write_vocab(tmp_path / "vocab.txt", [*WORDS[:40], "cat", *WORDS[41:]]))
    (candidates,) = fill_mask(load_model()._replace(tokenizer=tokenizer), "the [MASK]", 60)
    assert len({candidate.token for candidate in candidates}) == 60


def test_masks_are_filled_without_pooler_and_next_sentence_head(model_dir: str, tmp_path, capsys):
    masked_lm = tensors.keep_parts(loading.open_model(model_dir), {checkpoint.ENCODER, checkpoint.MASKED_LM}, "")
    (tmp_path / "masked_lm").mkdir()
    FORMATS["hugging_face"].write(masked_lm, str(tmp_path / "masked_lm"))
    loaded = loading.load_pretraining_model(str(tmp_path / "masked_lm"))
    assert set(loaded.model.output) == {"masked_lm_logits"}, "the other head's weights would be random"
    text = "the [MASK] ran ."
    assert fill_mask(loaded, text) == fill_mask(loading.load_pretraining_model(model_dir), text)
    assert capsys.readouterr().err == ""
    for name in ("checksums.json", "tokenizer_config.json", "tokenizer.json"):
        (tmp_path / "masked_lm" / name).unlink()
    loading.load_pretraining_model(str(tmp_path / "masked_lm"))
    assert capsys.readouterr().err.startswith("note: the vocabulary ")


@pytest.mark.parametrize(("text", "top_k", "names"), [
    ("the cat sat", 5, ("'the cat sat'", "[MASK]")),
    ("[MASK]" + " cat" * 40, 5, ("c'", 43, 32)),
    *(("the [MASK]", top_k, ("top_k", top_k, len(WORDS))) for top_k in (0, 2.5, len(WORDS) + 1)),
])  # fmt: skip
def test_invalid_text_or_top_k_is_rejected(text: str, top_k: int, names: tuple):
    assert_rejected(names, fill_mask, load_model(), text, top_k)


def test_an_encoder_is_rejected(model_dir: str):
    assert_rejected("[MASK]", print_candidates, options.FillMaskOptions(model_dir), [])
    assert_rejected("load_pretraining_model", fill_mask, loading.load(model_dir), "the [MASK]")


def test_command_prints_json_or_percentages(save_kind, capsys: pytest.CaptureFixture[str]):
    model_dir, texts = save_kind(FILL_MASK), ["the [MASK] ran .", "[MASK] [MASK]"]
    print_candidates(options.FillMaskOptions(model_dir, top_k=2, json=True), texts)
    loaded = loading.load_pretraining_model(model_dir)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"text": text, "masks": [[dataclasses.asdict(each) for each in mask] for mask in masks]}
        for text, masks in zip(texts, fill_masks(loaded, texts, 2), strict=True)
    ]
    print_candidates(options.FillMaskOptions(model_dir, top_k=len(WORDS)), ["the [MASK]"])
    text, *lines, empty = capsys.readouterr().out.splitlines()
    assert (text, empty) == ("the [MASK]", "")
    probabilities, tokens = zip(*(line.split(" %  ") for line in lines), strict=True)
    assert sum(map(float, probabilities)) == pytest.approx(100, abs=0.05 * len(WORDS))
    assert set(tokens) == set(WORDS)


def test_candidates_do_not_depend_on_the_other_texts_of_a_batch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("official_bert.inference.fill_mask._TEXTS_AT_A_TIME", 2)
    texts = ["the [MASK] ran .", "[MASK] [MASK] sat on the mat with the [MASK]", "[MASK]"]
    for text, masks in zip(texts, fill_masks(load_model(), texts, 3), strict=True):
        for mask, alone in zip(masks, fill_mask(load_model(), text, 3), strict=True):
            assert [each.token for each in mask] == [each.token for each in alone]
            assert [each.probability for each in mask] == pytest.approx([each.probability for each in alone])


def test_the_margin_of_a_text_is_its_smallest_probability_gap():
    texts = ["the [MASK] ran .", "[MASK] sat on the [MASK]"]
    _, margins = make_predictor(load_model(), 2).answer(exports.to_columns({"text": texts}))
    for margin, masks in zip(margins, fill_masks(load_model(), texts, 3), strict=True):
        pairs = [pair for mask in masks for pair in itertools.pairwise(mask)]  # the third candidate may become second
        assert margin == pytest.approx(min(one.probability - other.probability for one, other in pairs))


def test_a_folder_without_a_vocabulary_or_with_an_invalid_casing_is_rejected(model_dir: str):
    folder, load = pathlib.Path(model_dir), loading.load_pretraining_model
    (folder / "checksums.json").unlink()
    (folder / "vocab.txt").rename(folder / "kept.txt")
    assert_rejected((folder, "vocab.txt", "tokenizer_config.json"), load, model_dir)
    (folder / "kept.txt").rename(folder / "vocab.txt")
    (folder / "tokenizer_config.json").write_text("{")
    assert_rejected((folder / "tokenizer_config.json", '{"do_lower_case": true}'), load, model_dir)
