"""Answers that the Python library gives to texts, for each kind of model: the reference for exports."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from official_bert.checkpoints.loading import Loaded
from official_bert.export.graph_models import TOP_K
from official_bert.inference.fill_mask import fill_mask
from official_bert.kinds import names
from official_bert.kinds.names import ENCODER, FILL_MASK
from official_bert.kinds.question_answering import candidates
from official_bert.kinds.question_answering import questions as questions_module
from official_bert.kinds.question_answering.questions import Question
from official_bert.kinds.tagging import spec as tagging_spec
from official_bert.kinds.tagging.spec import Sentence
from official_bert.modeling.config import BertConfig
from official_bert.modeling.pretraining_model import get_encoder
from official_bert.tokenization.exact import FullTokenizer
from tests.export.exported_models import CHOICES, CONFIG, LABELS, TEXTS, build_model, pretraining_model
from tests.make import list_rows

Row = tuple[list[int], list[int]]  # ids and segments
Texts = Mapping[str, Sequence[Any]]  # by input
Answer = dict[str, Any]  # by output

_ENDINGS = [(TEXTS * 2)[row : row + CHOICES] for row in range(len(TEXTS))]
# Texts for each kind of model.
TEXTS_FOR: dict[str, Texts] = {
    **{kind: {"text": TEXTS} for kind in (*names.KINDS, ENCODER)},
    names.QUESTION_ANSWERING: {"question": TEXTS[::-1], "context": TEXTS},
    names.MULTIPLE_CHOICE: {"prompt": TEXTS, "endings": _ENDINGS},
    FILL_MASK: {"text": ["the [MASK] sat on the [MASK].", "no mask", "[MASK]", "[mask] [SEP] a [MASK] b" * 2]},
}


def create_model(kind: str, config: BertConfig = CONFIG, **settings: Any) -> keras.Model:
    """Returns the model that exported_models saves for a kind."""
    if kind not in (ENCODER, FILL_MASK):
        return build_model(kind, config, **settings)
    model = pretraining_model(config)
    return get_encoder(model) if kind == ENCODER else model


def tokenize_row(tokenizer: FullTokenizer, first: str, second: str | None, length: int) -> Row:
    """Returns the ids and segments of a text or pair, truncated one token at a time as in fine-tuning."""
    a = tokenizer.tokenize(first)
    b = None if second is None else tokenizer.tokenize(second)
    while len(a) + len(b or []) > length - (2 if b is None else 3):
        (a if b is None or len(a) > len(b) else b).pop()
    tokens = ["[CLS]", *a, "[SEP]"] if b is None else ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
    segments = [0] * (len(a) + 2) + [1] * (len(tokens) - len(a) - 2)
    return tokenizer.convert_tokens_to_ids(tokens), segments


def outputs_of_rows(model: keras.Model, rows: Sequence[Row], are_choices: bool = False) -> Any:
    """Returns the outputs for rows, padded to the longest; `are_choices`: they are the choices of one example."""
    length = max(len(ids) for ids, _ in rows)
    columns = {
        "input_ids": [ids for ids, _ in rows],
        "input_mask": [[1] * len(ids) for ids, _ in rows],
        "segment_ids": [segments for _, segments in rows],
    }
    features = {
        name: np.array([[*values, *[0] * (length - len(values))] for values in column], np.int32)
        for name, column in columns.items()
    }
    if are_choices:
        features = {name: value[None] for name, value in features.items()}
    return model(features, training=False)


def softmax(logits: Any) -> np.ndarray:
    powers = np.exp(np.asarray(logits, np.float64))
    return powers / powers.sum(-1, keepdims=True)


def question_windows(tokenizer: FullTokenizer, texts: Texts, spec: Answer) -> tuple[list[Question], list[Any]]:
    both = zip(texts["question"], texts["context"], strict=True)
    questions = [Question(str(number), *each, None) for number, each in enumerate(both)]
    limits = {name: spec[name] for name in ("max_seq_length", "doc_stride", "max_query_length")}
    features = questions_module.featurize(questions, tokenizer, questions_module.Limits(**limits))
    return questions, list_rows(features, questions_module.list_windows(features))


def answers_to_questions(model: keras.Model, tokenizer: FullTokenizer, texts: Texts, spec: Answer) -> Iterator[Answer]:
    questions, windows = question_windows(tokenizer, texts, spec)
    logits = outputs_of_rows(model, [(window.input_ids, window.segment_ids) for window in windows])
    starts, ends = (logits[name].numpy() for name in ("start_logits", "end_logits"))
    limits = {name: spec[name] for name in ("version_2", "n_best_size", "max_answer_length")}
    for prediction in candidates.predict(questions, windows, starts, ends, **limits):
        answer = prediction.answer(spec["version_2"], spec["null_score_diff_threshold"])
        named = {"answer": answer.text, "start": answer.start, "end": answer.end, "probability": answer.probability}
        yield {**named, "null_score_difference": prediction.null_score_difference}


def tags_of_words(model: keras.Model, tokenizer: FullTokenizer, texts: Texts, spec: Answer) -> Iterator[Answer]:
    sentences = [tokenizer.basic_tokenizer.tokenize(text) for text in texts["text"]]
    examples = [Sentence(tuple(words), None, number) for number, words in enumerate(sentences, 1)]
    length, stride = spec["max_seq_length"], spec.get("doc_stride")
    features = tagging_spec.featurize(examples, tokenizer, length, spec["labels"], stride)
    windows = list_rows(features, tagging_spec.list_windows(features))
    logits = outputs_of_rows(model, [(window.input_ids, window.segment_ids) for window in windows]).numpy()
    answers = tagging_spec.decode_tags([*map(len, sentences)], windows, logits, spec["labels"])
    for tags, probabilities in answers:
        yield {"tags": tags, "probabilities": probabilities}


def answers_in_python(
    kind: str, model: keras.Model, tokenizer: FullTokenizer, texts: Texts, spec: Answer
) -> Iterator[Answer]:
    """Yields the answer to each text, computed by itself except for windows of long texts."""
    length = spec["max_seq_length"]
    if kind == names.QUESTION_ANSWERING:
        yield from answers_to_questions(model, tokenizer, texts, spec)
    elif kind == names.TAGGING:
        yield from tags_of_words(model, tokenizer, texts, spec)
    elif kind == names.MULTIPLE_CHOICE:
        for prompt, endings in zip(texts["prompt"], texts["endings"], strict=True):
            seconds = [ending if tokenizer.tokenize(ending) else None for ending in endings]
            rows = [tokenize_row(tokenizer, prompt, second, length) for second in seconds]
            probabilities = softmax(outputs_of_rows(model, rows, are_choices=True)[0])
            yield {"choice": np.argmax(probabilities), "probabilities": probabilities}
    elif kind == FILL_MASK:
        for text in texts["text"]:
            masks = fill_mask(Loaded(model, CONFIG, tokenizer), text, TOP_K) if "[MASK]" in text else []
            yield {
                "tokens": [[each.token for each in mask] for mask in masks],
                "probabilities": [[each.probability for each in mask] for mask in masks],
            }
    else:
        for first, second in zip(texts["text"], texts.get("text_pair") or [None] * len(texts["text"]), strict=True):
            has_second = second is not None and tokenizer.tokenize(second)  # A text without tokens is ignored.
            ids, segments = tokenize_row(tokenizer, first, second if has_second else None, length)
            outputs = outputs_of_rows(model, [(ids, segments)])
            if kind == ENCODER:
                yield {"input_mask": [1] * len(ids), **{name: value[0] for name, value in outputs.items()}}
            elif kind == names.REGRESSION:
                yield {"value": outputs[0]}
            elif kind == names.MULTI_LABEL:
                yield {"labels": LABELS, "probabilities": 1 / (1 + np.exp(-outputs[0]))}
            else:
                probabilities = softmax(outputs[0])
                best = int(np.argmax(probabilities))
                named = {"label": LABELS[best], "labels": LABELS, "probability": probabilities[best]}
                yield {**named, "probabilities": probabilities}


def as_text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def assert_answers(
    found: Mapping[str, Any], expected: Sequence[Answer], rtol: float = 1e-5, atol: float = 1e-6
) -> None:
    """Compares the outputs of a batch with the answers to its texts, and what follows shorter answers with padding."""
    for name in expected[0]:
        column, values = np.asarray(found[name]), [answer[name] for answer in expected]
        if name == "sequence_output":  # the vectors of padding are never used
            column = column * np.asarray(found["input_mask"])[..., None]
        is_text = column.dtype.kind in "OSU"
        shapes = [np.shape(value) for value in values]
        shape = [max(sizes) for sizes in zip(*(each for each in shapes if 0 not in each), strict=True)]
        wanted = np.full((len(values), *shape), "" if is_text else 0.0, object if is_text else None)
        for row, value in enumerate(values):
            if np.size(value):
                wanted[(row, *map(slice, np.shape(value)))] = value
        if is_text:
            column = np.vectorize(as_text, otypes=[object])(column)
            np.testing.assert_array_equal(column, wanted, name)
        else:
            print(f"{name}: {column.size} numbers, at most {np.max(np.abs(column - wanted), initial=0):.1e} apart")
            np.testing.assert_allclose(column, wanted, rtol, atol, err_msg=name)


def assert_words(found: Mapping[str, Any], texts: Sequence[str], tokenizer: FullTokenizer) -> None:
    """Asserts that a tagger's words equal the words of the texts at their offsets."""
    for text, words, starts, ends in zip(texts, found["words"], found["starts"], found["ends"], strict=True):
        expected = tokenizer.basic_tokenizer.tokenize(text)
        written = [text[start:end] for start, end in zip(starts, ends, strict=True) if start >= 0]
        assert [*map(as_text, words)] == written + [""] * (len(words) - len(written))
        assert [tokenizer.basic_tokenizer.tokenize(word) for word in written] == [[word] for word in expected]
        assert set(starts[len(written) :]) | set(ends[len(written) :]) <= {-1}
