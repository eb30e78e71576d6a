"""Dynamic batching: computes rows (texts, or windows of long texts) of several requests in one batch.

A batch starts when it is full, when its oldest row has waited long enough, or when the model is idle. So a single
client never waits, and under load, a batch fills while the one before it is computed. Requests take turns: after a
batch of a request with many rows, the rows of other requests come first. Batches are computed in threads. Only short
ones are computed in the event loop, because a thread would cost more than it saves.
"""

import asyncio
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import numpy as np

from official_bert.inference import exports
from official_bert.inference.exports import Columns
from official_bert.inference.predictor import PARALLEL_BATCHES, Predictor, PreprocessedTexts, count_row_bytes
from official_bert.kinds.names import IS_TRUNCATED
from official_bert.serving import logs
from official_bert.serving.json_api import RequestError
from official_bert.serving.metrics import Metrics
from official_bert.serving.options import ServingOptions

# The longest row of a batch, to which all rows are padded, has at most this many times the tokens of the oldest row.
# Rows of up to _SHORT tokens cost about the same, so they may always share a batch.
_MAX_LENGTH_RATIO = 2
_SHORT = 64
# Maximum time for which the event loop computes a batch. Meanwhile it cannot read other requests.
_SHORT_SECONDS = 0.005
_BYTES_AT_A_TIME = 4096  # Number of bytes that a thread tokenizes before other requests have a turn.
_MAX_REQUESTS = 8  # Number of requests with the maximum number of tokens that may wait or be in progress.


@dataclasses.dataclass(eq=False)
class _Row:
    """A row (a text, or a window of a long text) that waits to be computed.

    Attributes:
        request: An object that identifies the request.
        texts: The preprocessed texts that the row belongs to.
        number: Index of the row in `texts`.
        answer: A future that receives the row's output.
        arrived: Time of arrival, from time.monotonic().
    """

    request: object
    texts: PreprocessedTexts
    number: int
    answer: asyncio.Future[Any]
    arrived: float

    @property
    def tokens(self) -> int:
        return self.texts.tokens[self.number]


class Pools:
    """The thread pools of a server, which compute batches, parse requests and tokenize long texts, and load models."""

    def __init__(self) -> None:
        self.computing = ThreadPoolExecutor(PARALLEL_BATCHES, "compute")
        self.parsing = ThreadPoolExecutor(1, "parse")
        self.loader = ThreadPoolExecutor(1, "load")

    def shut_down(self, seconds: float | None = None) -> bool:
        """Stops the threads after their current work, and returns whether they stopped in time.

        Args:
            seconds: Maximum time to wait. None waits as long as necessary.
        """
        pools = (self.computing, self.parsing, self.loader)
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)

        def wait() -> None:
            for pool in pools:
                pool.shutdown()

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        waiting.join(seconds)
        return not waiting.is_alive()


class Batcher:
    """Combines requests to one version of a model into batches, and computes them. Use it within one event loop.

    Args:
        model: The model, which computes `model.parallel_batches` batches at a time.
        name: Name of the model in the metrics.
        pools: The server's thread pools.
        options: The options of the server, with its limits.
        metrics: The server's metrics.
    """

    def __init__(self, model: Predictor, name: str, pools: Pools, options: ServingOptions, metrics: Metrics) -> None:
        self._model, self._name, self._pools, self._options = model, name, pools, options
        self._waiting: list[_Row] = []  # In the order in which they are computed.
        self._last_request: object = None  # The request of the last batch's oldest row.
        self._tokens = 0  # Of all requests.
        self._running: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Handle | None = None  # Starts the next batches.
        self._seconds_per_text: float | None = None  # Moving average for a text of up to _SHORT tokens.
        self._waiting_count, self._queue_seconds = metrics.waiting.labels(name), metrics.queue_seconds.labels(name)
        self._batch_size, self._batch_seconds = metrics.batch_size.labels(name), metrics.batch_seconds.labels(name)
        self._texts_cut = metrics.texts_cut.labels(name)

    async def predict(self, signature: str, inputs: Columns) -> Columns:
        """Returns the outputs of a signature for the inputs of one request, which may share batches with others.

        Args:
            signature: Name of the signature.
            inputs: An array [B, ...] for each input.

        Returns:
            An array [B, ...] for each output.

        Raises:
            RequestError: If too many texts are waiting (429), the model rejects an instance (400), the request has too
                many tokens (413), or the model does not answer within options.timeout_seconds (504).
        """
        count = len(next(iter(inputs.values())))
        if len(self._waiting) + count > self._options.max_queue:
            self._start_batches()  # The model may be idle if several requests have arrived together.
            if self._num_waiting + count > self._options.max_queue:
                raise self._make_busy_error(f"{self._num_waiting} instances")
        seconds, rows, instances = self._options.timeout_seconds, list[_Row](), list[PreprocessedTexts]()
        try:
            async with asyncio.timeout(seconds):
                pool = self._pools.parsing if sum(count_row_bytes(inputs)) > self._model.quick_bytes else None
                for part in _split_instances(inputs) if pool and self._model.supports_batching(signature) else [inputs]:
                    preprocessed = await run_in_pool(pool, self._model.preprocess, signature, part)
                    instances += preprocessed
                    self._tokens += _count_tokens(preprocessed)
                    self._check_tokens(instances, count)
                rows = self._enqueue(instances)
                one, *others = [each.answer for each in rows]
                outputs = iter(await asyncio.gather(one, *others) if others else [await one])
                answers = [
                    await run_in_pool(pool, self._model.postprocess, each, [next(outputs) for _ in each.tokens])
                    for each in instances
                ]
        except TimeoutError as error:
            raise RequestError(504, f"no answer within {seconds:g} seconds; send less per request") from error
        finally:  # If the client has gone or one instance was rejected, the other rows are not computed.
            self._tokens -= _count_tokens(instances)
            for row in rows:
                row.answer.cancel()
        answer = exports.join_rows(answers)
        if IS_TRUNCATED in answer:
            self._texts_cut.inc(int(np.sum(answer[IS_TRUNCATED])))
        return answer

    @property
    def _num_waiting(self) -> int:
        """The number of instances (texts) that wait to be computed."""
        return sum(each.num_texts for each in {row.texts for row in self._waiting})

    def _make_busy_error(self, what: str) -> RequestError:
        seconds = math.ceil(_compute_size(self._waiting) * (self._seconds_per_text or 0))
        message = f"{what} are already waiting for {self._name}; try again later"
        return RequestError(429, message, retry_after=min(max(seconds, 1), 60))

    def _check_tokens(self, instances: Sequence[PreprocessedTexts], count: int) -> None:
        """Raises a RequestError if the request, or all requests in progress together, have too many tokens.

        Args:
            instances: The instances of the request that have been preprocessed so far.
            count: Number of all instances of the request.
        """
        tokens, num_checked = _count_tokens(instances), sum(each.num_texts for each in instances)
        limit = self._options.max_tokens
        if tokens > limit:
            part = f"the first {num_checked} of {count}" if num_checked < count else f"the {count}"
            raise RequestError(
                413,
                f"{part} instances have {tokens} tokens in all windows; at most {limit} (--max_tokens) are accepted "
                "per request; send less",
            )
        if self._tokens > _MAX_REQUESTS * limit:
            raise self._make_busy_error(f"{self._tokens} tokens")

    def _enqueue(self, instances: Sequence[PreprocessedTexts]) -> list[_Row]:
        request, now, loop = object(), time.monotonic(), asyncio.get_running_loop()
        rows = [
            _Row(request, each, number, loop.create_future(), now)
            for each in instances
            for number in range(len(each.tokens))
        ]
        self._waiting += rows
        if self._timer:
            self._timer.cancel()
        self._timer = loop.call_soon(self._start_batches)  # After the requests that have arrived with this one.
        return rows

    def _start_batches(self) -> None:
        """Starts as many batches as can be computed now, and sets a timer for the next one if necessary."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self._waiting = [each for each in self._waiting if not each.answer.done()]  # Their clients may have gone.
        while self._waiting and len(self._running) < self._model.parallel_batches:
            self._waiting.sort(key=lambda row: row.request is self._last_request)  # Stable: others first, by age.
            batch = self._select_batch()
            seconds_left = batch[0].arrived + self._options.max_wait_ms / 1000 - time.monotonic()
            if self._running and len(batch) < self._options.max_batch_size and seconds_left > 0:
                self._timer = asyncio.get_running_loop().call_later(seconds_left, self._start_batches)
                break
            selected, self._last_request = set(batch), batch[0].request
            self._waiting = [each for each in self._waiting if each not in selected]
            if not self._running and self._is_short(batch):
                self._set_answers(batch, time.monotonic(), self._compute_rows(batch))
            else:
                self._running.add(asyncio.create_task(self._compute_in_thread(batch)))
        self._waiting_count.set(self._num_waiting)

    def _is_short(self, batch: list[_Row]) -> bool:
        if self._seconds_per_text is None or not self._model.has_even_speed:
            return False
        return self._seconds_per_text * _compute_size(batch) < _SHORT_SECONDS

    def _select_batch(self) -> list[_Row]:
        """Selects the next batch: the text that has waited longest, and texts of similar length, within the limits."""
        oldest, *others = self._waiting
        group, tokens = oldest.texts.group, oldest.tokens
        similar = [row for row in others if group and row.texts.group == group and _are_similar(row.tokens, tokens)]
        similar.sort(key=lambda row: abs(row.tokens - tokens))  # Stable: older rows first.
        batch, longest = [oldest], tokens
        for row in similar[: self._options.max_batch_size - 1]:
            longest = max(longest, row.tokens)
            if longest * (len(batch) + 1) > self._options.max_batch_tokens:
                break
            batch.append(row)
        return batch

    async def _compute_in_thread(self, batch: list[_Row]) -> None:
        started = time.monotonic()
        try:
            outputs = await run_in_pool(self._pools.computing, self._compute_rows, batch)
        except Exception as error:  # The executor has been shut down.
            outputs = [error] * len(batch)
        self._set_answers(batch, started, outputs)
        task = asyncio.current_task()
        assert task
        self._running.discard(task)
        self._start_batches()

    def _set_answers(self, batch: list[_Row], started: float, outputs: Sequence[Any]) -> None:
        seconds = time.monotonic() - started
        self._batch_size.observe(len(batch))
        self._batch_seconds.observe(seconds)
        last, average = seconds / _compute_size(batch), self._seconds_per_text
        self._seconds_per_text = last if average is None else average + 0.1 * (last - average)
        for row, output in zip(batch, outputs, strict=True):
            self._queue_seconds.observe(started - row.arrived)
            if row.answer.done():
                continue
            if isinstance(output, BaseException):
                row.answer.set_exception(output)
            else:
                row.answer.set_result(output)

    def _compute_rows(self, rows: Sequence[_Row]) -> list[Any]:
        """Computes a batch, and returns the output of each row (text or window), or the error if it fails.

        If a batch fails, its halves are computed separately, so that only the rows that cause the failure get an error.
        """
        try:
            return self._model.compute([(row.texts, row.number) for row in rows])
        except Exception as error:
            half = len(rows) // 2
            if half:
                return self._compute_rows(rows[:half]) + self._compute_rows(rows[half:])
            if isinstance(error, exports.RefusedTextsError):
                return [RequestError(400, f"the model rejects the input: {error}")]
            if not isinstance(error, RequestError):
                logs.error("the model failed", error, model=self._name, signature=rows[0].texts.signature)
                error = RequestError(500, f"the model failed: {type(error).__name__}; see the server's log")
            return [error]


async def run_in_pool(pool: Executor | None, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a thread of the pool and waits for it, or calls it directly if `pool` is None."""
    if pool is None:
        return function(*arguments)
    return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)


def _split_instances(inputs: Columns) -> list[Columns]:
    """Splits the instances of a request into parts of about _BYTES_AT_A_TIME bytes, each with at least one instance."""
    sizes = np.cumsum(count_row_bytes(inputs))
    starts = np.flatnonzero(np.diff(sizes // _BYTES_AT_A_TIME)) + 1
    columns = [np.split(value, starts) for value in inputs.values()]
    return [dict(zip(inputs, part, strict=True)) for part in zip(*columns, strict=True)]


def _count_tokens(instances: Sequence[PreprocessedTexts]) -> int:
    return sum(sum(each.tokens) for each in instances)


def _are_similar(tokens: int, others: int) -> bool:
    return max(tokens, others) <= max(_SHORT, _MAX_LENGTH_RATIO * min(tokens, others))


def _compute_size(rows: Sequence[_Row]) -> float:
    """Returns the relative cost of computing texts or windows: for each one its tokens / _SHORT, but at least 1."""
    return sum(max(1.0, row.tokens / _SHORT) for row in rows)
