"""The batcher: which instances share a batch, and when a batch starts."""

import asyncio
import dataclasses
import itertools
import pathlib
import threading
import types
from typing import Any

import numpy as np
import pytest

from official_bert.inference import exports, predictor
from official_bert.inference.saved_model import SavedModelPredictor
from official_bert.kinds.multiple_choice.spec import MultipleChoiceSpec
from official_bert.serving import batching, json_api, metrics
from official_bert.serving.options import ServingOptions
from official_bert.tokenization.exact import FullTokenizer
from tests.make import VOCAB, assert_mentions


class Model(predictor.Predictor):
    """Answers 1000 + the length of a text. Records the lengths of each batch, and computes only while `opened` is set.

    Texts of one letter are refused if `refuses` is set.
    """

    parallel_batches = 1
    refuses = False

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.threads: list[threading.Thread] = []
        self.opened = threading.Event()
        self.opened.set()

    def run(self, columns: Any, batch_size: int | None = None) -> Any:
        return {"value": np.array([1000.0 + len(text) for text in columns["text"]])}

    def preprocess(self, signature: str, columns: Any) -> list[predictor.PreprocessedTexts]:
        tokens = predictor.bound_tokens(columns, predictor.count_row_bytes(columns), 10_000)
        return predictor.split_texts(signature, columns, tokens)

    def compute(self, some_rows: Any) -> list[Any]:
        columns = exports.join_rows([texts.content for texts, _ in some_rows])
        self.batches.append(sorted(map(len, columns["text"])))
        self.threads.append(threading.current_thread())
        assert self.opened.wait(60)
        if self.refuses and 1 in self.batches[-1]:
            raise json_api.RequestError(400, "refused")
        return exports.split_rows(self.run(columns))


@pytest.fixture
def model() -> Model:
    return Model()


async def ask(batcher: batching.Batcher, *lengths: int) -> list[float]:
    """Sends one request with texts of these lengths, and returns the answers."""
    answers = await batcher.predict("serving_default", {"text": np.array(["x" * each for each in lengths], object)})
    return answers["value"].tolist()


@pytest.fixture
def make_batcher(model: Model):
    """Returns a function that makes a batcher, which computes one batch at a time."""
    pools, options = batching.Pools(), {"model": ["m=/m"], "max_wait_ms": 0.0}
    yield lambda **changes: batching.Batcher(model, "m", pools, ServingOptions(**options | changes), metrics.Metrics())
    pools.shut_down()


async def catch_refusal(status: int, names: tuple[object, ...], answers: Any) -> json_api.RequestError:
    """Returns the error of a request, which has a status and mentions each name."""
    with pytest.raises(json_api.RequestError) as caught:
        await answers
    assert caught.value.status == status
    assert_mentions(caught.value.message, *names)
    return caught.value


async def start(batcher: batching.Batcher, *requests: list[int]) -> list[asyncio.Task[list[float]]]:
    """Sends requests that arrive together, and waits until the first batch is being computed."""
    tasks = [asyncio.create_task(ask(batcher, *lengths)) for lengths in requests]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


async def test_a_single_request_does_not_wait(make_batcher):
    # The batch is not full, and could wait for an hour.
    assert await ask(make_batcher(max_wait_ms=3600e3), 5) == [1005.0]


async def test_a_batch_waits_for_more_texts_only_while_another_is_computed(model: Model, monkeypatch, make_batcher):
    monkeypatch.setattr(Model, "parallel_batches", 2)
    batcher = make_batcher(max_wait_ms=50.0)
    model.opened.clear()
    asked = [request for length in (1, 2, 3) for request in await start(batcher, [length])]
    while len(model.batches) < 2:  # until the time is over, although the first batch is not
        await asyncio.sleep(0.01)
    model.opened.set()
    await asyncio.gather(*asked)
    assert model.batches == [[1], [2, 3]]


@pytest.mark.parametrize(("lengths", "options", "expected"), [
    # Texts of up to 64 bytes share a batch, longer ones with up to twice their length.
    ([70, 1000, 30, 500, 64, 2, 1001, 139, 10], {"max_batch_size": 4, "max_batch_tokens": 10_000},
     [[64, 70, 139], [500, 1000, 1001], [2, 10, 30]]),
    # A batch takes the nearest lengths to the oldest text.
    ([100, 190, 101, 60, 99, 102], {"max_batch_size": 3}, [[99, 100, 101], [102, 190], [60]]),
    ([2, 64, 65], {}, [[2, 64], [65]]),
    ([40, 50, 50, 45, 40, 200], {"max_batch_tokens": 150}, [[40, 40, 45], [50, 50], [200]]),  # with padding
    ([50, 45, 44], {"max_batch_tokens": 149}, [[45, 50], [44]]),
    ([50, 45, 44], {"max_batch_tokens": 150}, [[44, 45, 50]]),
])  # fmt: skip
async def test_texts_of_similar_length_share_batches(lengths, options, expected, model, make_batcher):
    batcher = make_batcher(**options)
    model.opened.clear()
    asked = await start(batcher, [1])
    asked += await start(batcher, *([length] for length in lengths))
    model.opened.set()
    assert await asyncio.gather(*asked) == [[1000.0 + length] for length in (1, *lengths)]
    assert model.batches == [[1], *expected]


@pytest.mark.parametrize(("seconds", "retry_after"), [(0.0, 1), (2.0, 8), (1000.0, 60)])
async def test_a_full_queue_returns_retry_after(model: Model, seconds: float, retry_after: int, make_batcher):
    batcher = make_batcher(max_batch_size=1, max_queue=4, max_instances=4)
    model.opened.clear()
    asked = await start(batcher, *([number] for number in range(1, 6)))  # the first of them does not wait
    batcher._seconds_per_text = seconds
    error = await catch_refusal(429, (4, "m"), ask(batcher, 3))
    assert error.retry_after == retry_after
    model.opened.set()
    assert await asyncio.gather(*asked) == [[1001.0], [1002.0], [1003.0], [1004.0], [1005.0]]


async def test_a_slow_answer_times_out(model: Model, make_batcher):
    batcher = make_batcher(timeout_seconds=0.05, max_batch_size=1)
    model.opened.clear()
    for _ in range(2):  # the second one while it waits for its turn
        await catch_refusal(504, (0.05,), ask(batcher, 3))
    model.opened.set()
    while batcher._running:
        await asyncio.sleep(0.01)
    assert await ask(batcher, 3) == [1003.0]
    assert model.batches == [[3], [3]]


async def test_the_time_of_a_batch_is_attributed_to_texts_by_length(model: Model, monkeypatch, make_batcher):
    clock = itertools.count()
    monkeypatch.setattr(batching, "time", types.SimpleNamespace(monotonic=lambda: float(next(clock))))
    batcher = make_batcher()
    await ask(batcher, 64, 96, 128)
    assert batcher._seconds_per_text == 1.0 / (1 + 1.5 + 2)
    await ask(batcher, 1)
    assert batcher._seconds_per_text == pytest.approx(0.9 / 4.5 + 0.1)  # moves a tenth of the way to 1
    assert model.batches == [[64, 96, 128], [1]]


@pytest.mark.parametrize("has_even_speed", [False, True])  # False for TensorFlow models
async def test_short_computations_run_in_the_event_loop(model: Model, has_even_speed: bool, monkeypatch, make_batcher):
    monkeypatch.setattr(Model, "has_even_speed", has_even_speed)
    batcher = make_batcher()
    for seconds, texts in ((None, [1]), (0.002, [1]), (0.002, [1, 64]), (0.002, [64, 128]), (0.01, [1])):
        batcher._seconds_per_text = seconds
        await ask(batcher, *texts)
    batcher._seconds_per_text = 0.0
    await asyncio.gather(*await start(batcher, [3], [1], [2]))
    in_loop = [thread is threading.main_thread() for thread in model.threads[:5]]
    assert in_loop == [False, has_even_speed, has_even_speed, False, False]
    if has_even_speed:
        assert model.batches[5:] == [[1, 2, 3]]


async def test_a_rejected_text_cancels_the_rest_of_its_request(model: Model, make_batcher):
    model.refuses = True
    batcher = make_batcher(max_batch_size=1)
    await catch_refusal(400, ("refused",), ask(batcher, 1, 2, 3, 4))
    while batcher._running or batcher._waiting:
        await asyncio.sleep(0.01)
    assert model.batches in ([[1]], [[1], [2]])  # the second may have started before the first was refused


async def test_a_rejected_text_does_not_affect_its_batch(model: Model, make_batcher):
    model.refuses = True
    asked = await start(make_batcher(), [3], [1], [2])
    three, one, two = await asyncio.gather(*asked, return_exceptions=True)
    assert (three, two, type(one)) == ([1003.0], [1002.0], json_api.RequestError)


async def test_a_failure_of_the_model_is_reported_as_the_servers(model: Model, monkeypatch, caplog, make_batcher):
    monkeypatch.setattr(Model, "run", lambda *_: 1 / 0)
    await catch_refusal(500, ("ZeroDivisionError",), ask(make_batcher(), 3))
    assert "the model failed" in caplog.messages


async def test_texts_without_a_group_get_a_batch_of_their_own(model: Model, monkeypatch, make_batcher):
    split, replace = predictor.split_texts, dataclasses.replace
    monkeypatch.setattr(predictor, "split_texts", lambda *given: [replace(each, group=None) for each in split(*given)])
    await asyncio.gather(*await start(make_batcher(), [3], [1], [2]))
    assert model.batches == [[3], [1], [2]]


async def test_a_request_of_many_texts_delays_others_by_at_most_one_batch(model: Model, make_batcher):
    batcher = make_batcher(max_batch_size=2)
    model.opened.clear()
    asked = await start(batcher, [10] * 8)
    asked += await start(batcher, [200], [1000])
    model.opened.set()
    await asyncio.gather(*asked)
    assert model.batches == [[10, 10], [200], [1000], [10, 10], [10, 10], [10, 10]]


async def test_tokens_are_limited_per_request_and_in_total(model: Model, make_batcher):
    batcher = make_batcher(max_tokens=170)
    await catch_refusal(413, (3, 180, 170, "--max_tokens"), ask(batcher, 60, 60, 60))
    await ask(batcher, 60, 60, 50)  # as many tokens as are accepted
    model.opened.clear()
    asked = await start(batcher, *[[80, 80]] * 8)
    await catch_refusal(429, (1440, "m"), ask(batcher, 80, 80))
    model.opened.set()
    await asyncio.gather(*asked)
    await ask(batcher, 80, 80)


async def test_tokens_of_answered_and_refused_requests_are_released(model: Model, monkeypatch, make_batcher):
    monkeypatch.setattr(Model, "quick_bytes", 0)  # each of the texts is preprocessed separately
    batcher = make_batcher(max_tokens=10_000)
    for _ in range(20):
        await ask(batcher, 5000, 5000)
        await catch_refusal(413, (2, 3, 12000), ask(batcher, 6000, 6000, 6000))


def test_tokens_of_all_windows_of_a_text_are_counted(exports: pathlib.Path):
    model = SavedModelPredictor(str(exports / "names" / "1"))
    texts = {"text": np.array(["a " * 6000, "a b c d"], object)}
    assert [each.tokens for each in model.preprocess("serving_default", texts)] == [[3000 * 8], [16]]  # by `tokenize`
    short = {"text": np.array(["a b", "a b c d"], object)}
    assert [each.tokens for each in model.preprocess("serving_default", short)] == [[3], [7]]  # not by `tokenize`


class Lengths(predictor.SpecPredictor):
    """The logit of an ending is the number of tokens of its sequence."""

    quick_bytes = 0

    def compute_outputs(self, features: Any, batch_size: int | None = None) -> Any:
        return list((features.splits[1:] - features.splits[:-1]).reshape(-1, features.choices).astype(np.float32))


def test_separately_preprocessed_rows_get_the_same_answers():
    model = Lengths(MultipleChoiceSpec(num_choices=2), FullTokenizer.from_vocab(VOCAB), 16)
    texts = {"prompt": ["the cat", "a"], "endings": [["sat", "ran in the sun"], ["dog", ""]]}
    requests = [exports.to_columns({name: column[n : n + 1] for name, column in texts.items()}) for n in (0, 1)]
    preprocessed = [each for columns in requests for each in model.preprocess("serving_default", columns)]
    assert [each.tokens for each in preprocessed] == [[2 * 9], [2 * 5]]  # the longest sequence, for each ending
    outputs = model.compute([(each, 0) for each in reversed(preprocessed)])
    answers = [model.postprocess(each, [output]) for each, output in zip(preprocessed, reversed(outputs), strict=True)]
    expected = model.run(exports.to_columns(texts))
    for name, values in exports.join_rows(answers).items():
        np.testing.assert_array_equal(values, expected[name])
    assert expected["choice"].tolist() == [1, 0]


def test_rows_of_ids_share_a_batch_only_if_they_have_the_same_length(exports: pathlib.Path):
    model, names = SavedModelPredictor(str(exports / "length" / "1")), ("input_ids", "input_mask", "segment_ids")
    rows = [model.preprocess("serving_ids", {name: np.ones((1, size), int) for name in names})[0] for size in (3, 4)]
    assert [each.tokens for each in rows] == [[3], [4]]
    assert rows[0].group != rows[1].group


def test_each_choice_counts_as_a_text():
    columns = {"text": np.array(["a", "a b"], object), "endings": np.full((2, 3), "a", object)}
    assert predictor.bound_tokens(columns, [30, 4], max_seq_length=10) == [30, 12]
