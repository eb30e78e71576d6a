"""The batcher: which instances share a batch, and when a batch starts."""

import asyncio
import concurrent.futures
import itertools
import pathlib
import threading
import types
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from official_bert.inference.predictor import bound_tokens
from official_bert.inference.saved_model import SavedModelPredictor
from official_bert.serving import batching
from official_bert.serving.batching import Batcher
from official_bert.serving.json_api import RequestError
from official_bert.serving.metrics import Metrics
from official_bert.serving.options import Options

FOR_EVER = 3600e3  # milliseconds; far longer than a test


class Recorded:
    """A model of one text that records the texts of each batch, and computes only while `opened` is set."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.model = SavedModelPredictor(str(folder / "1"))
        self.model.parallel_batches = 1
        self.batches: list[list[int]] = []  # bytes of each text
        self.opened = threading.Event()
        self.opened.set()
        run = self.model.call

        def recorded(signature, inputs):
            self.batches.append([len(text) for text in inputs["text"]])
            assert self.opened.wait(60)
            return run(signature, inputs)

        self.model.call = recorded

    def answers(self, *rounds: list[int], size: int = 4) -> None:
        """Requests answers for texts of these lengths: first one that occupies the model, then all others at once."""

        async def ask() -> None:
            with concurrent.futures.ThreadPoolExecutor(1) as threads:
                wait = FOR_EVER if len(rounds) == 1 else 0.0
                limits: dict[str, Any] = {"max_batch_size": size, "max_batch_tokens": 10_000, "max_queue": 1000}
                options = Options(["m=/m"], max_wait_ms=wait, **limits)
                batcher = Batcher(self.model, "m", threads, threads, options, Metrics())
                asked = []
                for lengths in rounds:
                    for length in lengths:
                        asked.append(asyncio.create_task(batcher.predict("serving_default", make_text(length))))
                    await asyncio.sleep(0)  # so that the first one is being computed
                self.opened.set()
                async with asyncio.timeout(60):
                    found = await asyncio.gather(*asked)
                expected = [1000.0 + length for lengths in rounds for length in lengths]
                assert [float(each["value"][0]) for each in found] == expected

        asyncio.run(ask())


def make_text(length: int) -> dict[str, np.ndarray]:
    return {"text": np.array(["x" * length], object)}


@pytest.fixture
def recorded(exports: pathlib.Path) -> Recorded:
    return Recorded(exports / "size")


def test_a_lone_request_does_not_wait_for_others(recorded: Recorded):
    recorded.answers([5])  # the batch is not full, and could wait for an hour
    assert recorded.batches == [[5]]


def test_texts_of_like_length_share_batches(recorded: Recorded):
    recorded.opened.clear()
    # Long and short texts alternate. Texts of up to 64 bytes share a batch, longer ones with up to twice their length.
    recorded.answers([1], [70, 1000, 30, 500, 64, 2, 1001, 139, 10])
    assert recorded.batches[0] == [1]
    assert [sorted(batch) for batch in recorded.batches[1:]] == [[64, 70, 139], [500, 1000, 1001], [2, 10, 30]]


def test_a_batch_takes_the_nearest_lengths_to_the_oldest_text(recorded: Recorded):
    recorded.opened.clear()
    recorded.answers([1], [100, 190, 101, 60, 99, 102], size=3)
    assert [sorted(batch) for batch in recorded.batches[1:3]] == [[99, 100, 101], [102, 190]]


def test_texts_are_short_up_to_64_bytes(recorded: Recorded):
    recorded.opened.clear()
    recorded.answers([1], [2, 64, 65])
    assert recorded.batches[1:] == [[2, 64], [65]]


def make_texts(*lengths: int) -> dict[str, np.ndarray]:
    return {"text": np.array(["x" * length for length in lengths], object)}


def run_batcher(recorded: Recorded, use: Callable[[Batcher], Awaitable[None]], **options: Any) -> None:
    """Runs a test with a batcher that computes one batch at a time."""

    async def run() -> None:
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            given = Options(["m=/m"], max_wait_ms=0.0, **options)
            await use(Batcher(recorded.model, "m", threads, threads, given, Metrics()))

    asyncio.run(run())


@pytest.mark.parametrize(("seconds", "retry_after"), [(0.0, 1), (2.0, 8), (1000.0, 60)])
def test_a_full_queue_says_when_it_will_be_shorter(recorded: Recorded, seconds: float, retry_after: int):
    async def use(batcher: Batcher) -> None:
        recorded.opened.clear()
        asked = [asyncio.create_task(batcher.predict("serving_default", make_text(3)))]
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # it is being computed
        asked += [asyncio.create_task(batcher.predict("serving_default", make_text(1))) for _ in range(4)]
        await asyncio.sleep(0)
        batcher._seconds_per_text = seconds
        with pytest.raises(RequestError, match="4 instances are already waiting for m") as refused:
            await batcher.predict("serving_default", make_text(3))
        assert refused.value.retry_after == retry_after
        recorded.opened.set()
        await asyncio.gather(*asked)

    run_batcher(recorded, use, max_queue=4, max_instances=4)


def test_requests_that_arrive_together_may_be_as_many_as_are_computed_and_as_many_as_may_wait(recorded: Recorded):
    async def use(batcher: Batcher) -> None:
        recorded.opened.clear()
        asked = [asyncio.create_task(batcher.predict("serving_default", make_text(n))) for n in range(1, 7)]
        await asyncio.sleep(0)  # all of them arrive before a batch starts
        with pytest.raises(RequestError, match="4 instances are already waiting for m"):
            await asked[5]
        recorded.opened.set()
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*asked[:5])
        assert [float(each["value"][0]) for each in answers] == [1001.0, 1002.0, 1003.0, 1004.0, 1005.0]

    run_batcher(recorded, use, max_batch_size=1, max_queue=4, max_instances=4)


def test_the_time_of_a_batch_is_shared_by_its_texts_by_their_lengths(recorded: Recorded, monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(batching, "time", types.SimpleNamespace(monotonic=lambda: float(next(clock))))

    async def use(batcher: Batcher) -> None:
        await batcher.predict("serving_default", make_texts(64, 96, 128))
        assert batcher._seconds_per_text == 1.0 / (1 + 1.5 + 2)
        await batcher.predict("serving_default", make_text(1))
        assert batcher._seconds_per_text == pytest.approx(0.9 / 4.5 + 0.1)  # moves a tenth of the way to 1

    run_batcher(recorded, use)
    assert [sorted(batch) for batch in recorded.batches] == [[64, 96, 128], [1]]


def test_what_takes_little_time_is_computed_by_the_event_loop(recorded: Recorded):
    threads: list[threading.Thread] = []
    run = recorded.model.call

    def noted(signature: str, inputs: Any) -> Any:
        threads.append(threading.current_thread())
        return run(signature, inputs)

    recorded.model.call = noted  # type: ignore[method-assign]

    async def use(batcher: Batcher) -> None:
        for seconds, texts in ((None, [1]), (0.002, [1]), (0.002, [1, 64]), (0.002, [64, 128]), (0.01, [1])):
            batcher._seconds_per_text = seconds
            await batcher.predict("serving_default", make_texts(*texts))

    run_batcher(recorded, use)  # TensorFlow models never do
    assert threading.main_thread() not in threads
    threads.clear()
    recorded.model.has_even_speed = True  # type: ignore[misc]
    run_batcher(recorded, use)
    assert [thread is threading.main_thread() for thread in threads] == [False, True, True, False, False]


def test_requests_that_arrive_together_share_a_batch_also_where_the_event_loop_computes(recorded: Recorded):
    async def use(batcher: Batcher) -> None:
        batcher._seconds_per_text, recorded.model.has_even_speed = 0.0, True
        await asyncio.gather(*(batcher.predict("serving_default", make_text(length)) for length in (3, 1, 2)))

    run_batcher(recorded, use)
    assert [sorted(batch) for batch in recorded.batches] == [[1, 2, 3]]


def test_when_one_text_is_refused_the_others_of_its_request_are_not_computed(recorded: Recorded):
    run = recorded.model.call

    def refusing(signature: str, inputs: Any) -> Any:
        answers = run(signature, inputs)
        if len(inputs["text"][0]) == 1:
            raise RequestError(400, "refused")
        return answers

    recorded.model.call = refusing  # type: ignore[method-assign]

    async def use(batcher: Batcher) -> None:
        with pytest.raises(RequestError, match="refused"):
            await batcher.predict("serving_default", make_texts(1, 2, 3, 4))
        while batcher._running or batcher._waiting:
            await asyncio.sleep(0.01)

    run_batcher(recorded, use, max_batch_size=1)
    assert recorded.batches in ([[1]], [[1], [2]])  # the second may have started before the first was refused


def test_a_batch_has_no_more_tokens_than_allowed_with_padding(recorded: Recorded):
    async def use(batcher: Batcher) -> None:
        await batcher.predict("serving_default", make_texts(40, 50, 50, 45, 40, 200))

    run_batcher(recorded, use, max_batch_tokens=150)
    assert [sorted(batch) for batch in recorded.batches] == [[40, 40, 45], [50, 50], [200]]


def test_a_request_of_many_texts_makes_another_wait_for_one_batch(recorded: Recorded):
    async def use(batcher: Batcher) -> None:
        recorded.opened.clear()
        large = asyncio.create_task(batcher.predict("serving_default", make_texts(*[10] * 8)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # its first batch is being computed
        others = [asyncio.create_task(batcher.predict("serving_default", make_text(n))) for n in (200, 1000)]
        await asyncio.sleep(0)
        recorded.opened.set()
        await asyncio.gather(large, *others)

    run_batcher(recorded, use, max_batch_size=2)
    assert recorded.batches == [[10, 10], [200], [1000], [10, 10], [10, 10], [10, 10]]


def test_too_many_tokens_are_refused_in_a_request_and_in_all_of_them(recorded: Recorded):
    async def use(batcher: Batcher) -> None:
        with pytest.raises(RequestError, match=r"the 3 instances have 180 tokens .* 170 .*--max_tokens") as refused:
            await batcher.predict("serving_default", make_texts(60, 60, 60))
        assert refused.value.status == 413
        await batcher.predict("serving_default", make_texts(60, 60, 50))  # as many tokens as are accepted
        recorded.opened.clear()
        asked = [asyncio.create_task(batcher.predict("serving_default", make_texts(80, 80))) for _ in range(8)]
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="1440 tokens are already waiting for m") as refused:
            await batcher.predict("serving_default", make_texts(80, 80))
        assert refused.value.status == 429
        recorded.opened.set()
        await asyncio.gather(*asked)
        await batcher.predict("serving_default", make_texts(80, 80))

    run_batcher(recorded, use, max_tokens=170)


def test_windows_of_long_texts_count_as_their_tokens(exports: pathlib.Path):
    model = SavedModelPredictor(str(exports / "names" / "1"))
    texts = {"text": np.array(["a " * 6000, "a b c d"], object)}
    assert [each.tokens for each in model.prepare("serving_default", texts)] == [[3000 * 8], [16]]  # by `tokenize`
    short = {"text": np.array(["a b", "a b c d"], object)}
    assert [each.tokens for each in model.prepare("serving_default", short)] == [[3], [7]]  # not by `tokenize`


def test_every_choice_counts_as_a_text():
    columns = {"text": np.array(["a", "a b"], object), "endings": np.full((2, 3), "a", object)}
    assert bound_tokens(columns, [30, 4], max_seq_length=10) == [30, 12]
