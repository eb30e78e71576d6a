"""Dynamic batching: rows of many requests are computed together.

A row is a text, or one of the windows of a long text. A batch starts when it is full, when its oldest row has waited
long enough, or when the model has nothing else to do: a lone client never waits, and under load batches fill by
themselves while the one before is computed. Requests take turns, so that one with many rows makes another wait for a
single batch. Batches are computed by threads. The event loop itself computes one that takes little time, since a thread
would cost more than it saves.
"""

import asyncio
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np

from official_bert.inference import exports
from official_bert.inference.exports import Columns
from official_bert.inference.predictor import Predictor, Prepared, count_row_bytes
from official_bert.kinds.names import IS_TRUNCATED
from official_bert.serving import logs
from official_bert.serving.json_api import RequestError
from official_bert.serving.metrics import Metrics
from official_bert.serving.options import Options

# Rows are computed together if the longest has at most this many times the tokens of the shortest, as all are padded to
# it; rows up to _SHORT tokens cost about the same.
_ALIKE = 2
_SHORT = 64
# What the event loop may compute, during which no other request is read: as long as one of them is parsed.
_SHORT_SECONDS = 0.005
_BYTES_AT_ONCE = 4096  # of text that a thread tokenizes before it turns to other requests
_MAX_REQUESTS = 8  # requests of the most tokens that may wait or be computed


@dataclasses.dataclass(eq=False)
class _Row:
    """A row that waits for the model."""

    request: object  # the rows of one request have the same one
    prepared: Prepared
    number: int  # within `prepared`
    answer: asyncio.Future[Any]
    arrived: float

    @property
    def tokens(self) -> int:
        return self.prepared.tokens[self.number]


class Batcher:
    """Puts rows of requests to one version of a model into batches. To be used within one event loop.

    Args:
        model: Computes batches.
        name: The model's name, for the metrics.
        threads: Threads that compute batches.
        tokenizing: Threads that tokenize long texts and decode their answers.
        parallel: Number of batches that are computed at a time.
        options: The limits.
        metrics: The server's metrics.
    """

    def __init__(
        self,
        model: Predictor,
        name: str,
        threads: Executor,
        tokenizing: Executor,
        parallel: int,
        options: Options,
        metrics: Metrics,
    ) -> None:
        self._model, self._name, self._parallel = model, name, parallel
        self._threads, self._tokenizing = threads, tokenizing
        self._options = options
        self._waiting: list[_Row] = []  # in the order in which they are computed
        self._last_request: object = None  # whose rows were computed last
        self._tokens = 0  # of all requests
        self._running: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Handle | None = None  # that starts batches
        self._seconds_per_text: float | None = None  # of up to _SHORT tokens, of late
        self._waiting_count, self._queue_seconds = metrics.waiting.labels(name), metrics.queue_seconds.labels(name)
        self._batch_size, self._batch_seconds = metrics.batch_size.labels(name), metrics.batch_seconds.labels(name)
        self._texts_cut = metrics.texts_cut.labels(name)

    async def predict(self, signature: str, inputs: Columns) -> Columns:
        """Returns the outputs for inputs [B, ...]: also [B, ...] but for signatures that are not answers (tokenize).

        Raises:
            RequestError: 429 if too much waits already; 400 if the model refuses an instance; 413 if there are too many
                tokens; 504 if the model has not answered within options.timeout_seconds.
        """
        count = len(next(iter(inputs.values())))
        if len(self._waiting) + count > self._options.max_queue:
            self._start_batches()  # The model may be free, if several requests have arrived together.
            if self._num_waiting + count > self._options.max_queue:
                raise self._busy(f"{self._num_waiting} instances")
        most, rows = self._options.timeout_seconds, list[_Row]()
        instances: list[Prepared] = []
        try:
            async with asyncio.timeout(most):
                parts = list(_parts(inputs, self._model.can_divide(signature)))
                pool = self._tokenizing if _num_bytes(inputs) > self._model.quick_bytes else None
                for part in parts:
                    prepared = await _run(pool, self._model.prepare, signature, part)
                    instances += prepared
                    self._tokens += _num_tokens(prepared)
                    self._check_tokens(instances, count)
                rows = self._enqueue(instances)
                one, *others = [each.answer for each in rows]
                outputs = iter(await asyncio.gather(one, *others) if others else [await one])
                answers = [
                    await _run(pool, self._model.finish, each, [next(outputs) for _ in each.tokens])
                    for each in instances
                ]
        except TimeoutError as error:
            raise RequestError(504, f"no answer within {most:g} seconds; send less at once") from error
        finally:  # where the client has gone, or one instance was refused, the others are not computed
            self._tokens -= _num_tokens(instances)
            for row in rows:
                row.answer.cancel()
        answer = exports.join_rows(answers)
        self._texts_cut.inc(int(np.sum(answer.get(IS_TRUNCATED, 0))))
        return answer

    @property
    def _num_waiting(self) -> int:
        """The number of instances that wait."""
        return sum(each.instances for each in {row.prepared for row in self._waiting})

    def _busy(self, what: str) -> RequestError:
        seconds = math.ceil(_size(self._waiting) * (self._seconds_per_text or 0))
        message = f"{what} wait for {self._name} already; try again later"
        return RequestError(429, message, retry_after=min(max(seconds, 1), 60))

    def _check_tokens(self, instances: Sequence[Prepared], count: int) -> None:
        """Raises a RequestError if a request, or all of them, have too many tokens.

        Args:
            instances: The first instances of a request.
            count: Number of all its instances.
        """
        tokens, so_far = _num_tokens(instances), sum(each.instances for each in instances)
        limit = self._options.max_tokens
        if tokens > limit:
            part = f"the first {so_far} of {count}" if so_far < count else f"the {count}"
            raise RequestError(
                413,
                f"{part} instances have {tokens} tokens in all windows; at most {limit} are taken at once "
                "(--max_tokens); send less at once",
            )
        if self._tokens > _MAX_REQUESTS * limit:
            raise self._busy(f"{self._tokens} tokens")

    def _enqueue(self, instances: Sequence[Prepared]) -> list[_Row]:
        request, now, loop = object(), time.monotonic(), asyncio.get_running_loop()
        rows = [
            _Row(request, each, number, loop.create_future(), now)
            for each in instances
            for number in range(len(each.tokens))
        ]
        self._waiting += rows
        if self._timer:
            self._timer.cancel()
        self._timer = loop.call_soon(self._start_batches)  # after the requests that have arrived with this one
        return rows

    def _start_batches(self) -> None:
        """Starts as many batches as may start now, and sees to it that the next one starts in time."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self._waiting = [each for each in self._waiting if not each.answer.done()]  # not those whose client has gone
        while self._waiting and len(self._running) < self._parallel:
            self._waiting.sort(key=lambda row: row.request is self._last_request)  # stable: first the others, by age
            batch = self._next_batch()
            left = batch[0].arrived + self._options.max_wait_ms / 1000 - time.monotonic()
            if self._running and len(batch) < self._options.max_batch_size and left > 0:
                self._timer = asyncio.get_running_loop().call_later(left, self._start_batches)
                break
            chosen, self._last_request = set(batch), batch[0].request
            self._waiting = [each for each in self._waiting if each not in chosen]
            if not self._running and self._is_short(batch):
                self._answer(batch, time.monotonic(), self._outputs(batch))
            else:
                self._running.add(asyncio.create_task(self._compute(batch)))
        self._waiting_count.set(self._num_waiting)

    def _is_short(self, batch: list[_Row]) -> bool:
        if self._seconds_per_text is None or not self._model.has_even_speed:
            return False
        return self._seconds_per_text * _size(batch) < _SHORT_SECONDS

    def _next_batch(self) -> list[_Row]:
        """Returns the oldest row, with those of most nearly its length, up to the limits of rows and tokens."""
        oldest, *others = self._waiting
        group, tokens = oldest.prepared.group, oldest.tokens
        alike = [row for row in others if group and row.prepared.group == group and _alike(row.tokens, tokens)]
        alike.sort(key=lambda row: abs(row.tokens - tokens))  # stable: older ones first
        batch, longest = [oldest], tokens
        for row in alike[: self._options.max_batch_size - 1]:
            longest = max(longest, row.tokens)
            if longest * (len(batch) + 1) > self._options.max_batch_tokens:
                break
            batch.append(row)
        return batch

    async def _compute(self, batch: list[_Row]) -> None:
        started = time.monotonic()
        try:
            outputs = await _run(self._threads, self._outputs, batch)
        except Exception as error:  # the executor's own: it is shut down
            outputs = [error] * len(batch)
        self._answer(batch, started, outputs)
        task = asyncio.current_task()
        assert task
        self._running.discard(task)
        self._start_batches()

    def _answer(self, batch: list[_Row], started: float, outputs: Sequence[Any]) -> None:
        seconds = time.monotonic() - started
        self._batch_size.observe(len(batch))
        self._batch_seconds.observe(seconds)
        last, of_late = seconds / _size(batch), self._seconds_per_text
        self._seconds_per_text = last if of_late is None else of_late + 0.1 * (last - of_late)
        for row, output in zip(batch, outputs, strict=True):
            self._queue_seconds.observe(started - row.arrived)
            if row.answer.done():
                continue
            if isinstance(output, BaseException):
                row.answer.set_exception(output)
            else:
                row.answer.set_result(output)

    def _outputs(self, rows: Sequence[_Row]) -> list[Any]:
        """Computes a batch. Where it fails, its halves are tried, so that only the culprit is refused."""
        try:
            return self._model.compute([(row.prepared, row.number) for row in rows])
        except Exception as error:
            half = len(rows) // 2
            if half:
                return self._outputs(rows[:half]) + self._outputs(rows[half:])
            if isinstance(error, exports.RefusedTextsError):
                return [RequestError(400, f"the model refuses the input: {error}")]
            if not isinstance(error, RequestError):
                logs.error("the model failed", error, model=self._name, signature=rows[0].prepared.signature)
                error = RequestError(500, f"the model failed: {type(error).__name__}; the server's log has more")
            return [error]


async def _run(pool: Executor | None, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a thread of the pool, or here if there is none."""
    if pool is None:
        return function(*arguments)
    return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)


def _parts(inputs: Columns, can_be_divided: bool) -> Iterator[Columns]:
    """Yields the inputs of some instances at a time, or all of them."""
    count = len(next(iter(inputs.values())))
    start, size = 0, 0
    for end in range(1, count):
        size += _num_bytes({name: value[end - 1 : end] for name, value in inputs.items()})
        if can_be_divided and size > _BYTES_AT_ONCE:
            yield {name: value[start:end] for name, value in inputs.items()}
            start, size = end, 0
    yield {name: value[start:] for name, value in inputs.items()}


def _num_bytes(inputs: Columns) -> int:
    """Returns the number of bytes of all texts."""
    return sum(count_row_bytes(inputs))


def _num_tokens(instances: Sequence[Prepared]) -> int:
    return sum(sum(each.tokens) for each in instances)


def _alike(tokens: int, others: int) -> bool:
    return max(tokens, others) <= max(_SHORT, _ALIKE * min(tokens, others))


def _size(rows: Sequence[_Row]) -> float:
    """Returns how much work rows are, in texts of up to _SHORT tokens."""
    return sum(max(1.0, row.tokens / _SHORT) for row in rows)
