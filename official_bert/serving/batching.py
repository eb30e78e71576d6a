"""Dynamic batching: instances of many requests are computed together.

A batch starts when it is full, when its oldest instance has waited long enough, or when the model has nothing else to
do: a lone client never waits, and under load batches fill by themselves while the one before is computed. Batches are
computed by threads; one that takes little time, by the event loop itself, since a thread would cost more than it saves.
"""

import asyncio
import dataclasses
import math
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Executor

import numpy as np

from official_bert.inference import exports
from official_bert.inference.exports import DEFAULT_SIGNATURE
from official_bert.serving import logs
from official_bert.serving.metrics import Metrics
from official_bert.serving.options import Options
from official_bert.serving.request_error import RequestError
from official_bert.serving.served_model import ServedModel
from official_bert.serving.signatures import Tensors

# Texts are computed together if the longest has at most this many times the bytes of the shortest, as all are padded to
# it; texts up to _SHORT bytes cost about the same.
_ALIKE = 2
_SHORT = 64
# What the event loop may compute, during which no other request is read: as long as one of them is parsed.
_SHORT_SECONDS = 0.005


@dataclasses.dataclass(eq=False)
class _Instance:
    """One instance that waits: its inputs, each [1, ...]. Or a whole request, [B, ...], that is computed by itself."""

    signature: str
    inputs: Tensors
    length: int  # bytes of text
    group: Hashable  # instances of one group may share a batch; None for a whole request
    answer: asyncio.Future[Tensors]
    arrived: float


class Batcher:
    """Puts instances of requests to one version of a model into batches. To be used within one event loop.

    Args:
        model: answers batches.
        name: the model's, for the metrics.
        threads: where batches are computed.
        parallel: how many batches at a time.
        options: the most instances in a batch, the longest wait, the most that wait.
    """

    def __init__(
        self, model: ServedModel, name: str, threads: Executor, parallel: int, options: Options, metrics: Metrics
    ) -> None:
        self._model, self._name, self._threads, self._parallel = model, name, threads, parallel
        self._options = options
        self._waiting: list[_Instance] = []  # in the order of arrival
        self._running: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Handle | None = None  # that starts batches
        self._seconds_per_text: float | None = None  # of up to _SHORT bytes, of late
        self._waiting_count, self._queue_seconds = metrics.waiting.labels(name), metrics.queue_seconds.labels(name)
        self._batch_size, self._batch_seconds = metrics.batch_size.labels(name), metrics.batch_seconds.labels(name)
        self._texts_cut = metrics.texts_cut.labels(name)

    async def predict(self, signature: str, inputs: Tensors) -> Tensors:
        """Returns the outputs for inputs [B, ...]: also [B, ...] but for signatures that are not answers (tokenize).

        Raises:
            RequestError: 429 where too many wait already; 400 where the model refuses an instance; 504 where it has not
                answered within options.timeout_seconds.
        """
        count = len(next(iter(inputs.values())))
        room = self._options.max_queue - count  # the most that may wait beside these
        if len(self._waiting) > room:
            self._start_batches()  # those that have arrived together may not have begun, though the model is free
        if len(self._waiting) > room:
            seconds = math.ceil(_size(self._waiting) * (self._seconds_per_text or 0))
            raise RequestError(429, f"{len(self._waiting)} instances wait for {self._name} already; try again later",
                          retry_after=min(max(seconds, 1), 60))  # fmt: skip
        instances = self._instances(signature, inputs, count)
        self._waiting += instances
        self._waiting_count.set(len(self._waiting))
        if self._timer:
            self._timer.cancel()
        # After the requests that have arrived with this one.
        self._timer = asyncio.get_running_loop().call_soon(self._start_batches)
        most = self._options.timeout_seconds
        try:
            async with asyncio.timeout(most):
                one, *others = [each.answer for each in instances]
                answers = await asyncio.gather(one, *others) if others else [await one]
        except TimeoutError as error:
            raise RequestError(504, f"no answer within {most:g} seconds; send less at once") from error
        finally:  # where the client has gone, or one instance was refused, the others are not computed
            for each in instances:
                each.answer.cancel()
        return exports.join_rows(answers)

    def _instances(self, signature: str, inputs: Tensors, count: int) -> list[_Instance]:
        """Cuts a request up.

        Only the texts of serving_default, and numbers of one shape, are computed with those of other requests: what
        padding does to other outputs is not known here.
        """
        now, loop = time.monotonic(), asyncio.get_running_loop()
        is_known = signature == DEFAULT_SIGNATURE or not self._model.signatures[signature].takes_texts_alone
        if not (is_known and self._model.export_metadata):
            return [_Instance(signature, inputs, 0, None, loop.create_future(), now)]
        group = (signature, tuple(value.shape[1:] for value in inputs.values()))
        instances = []
        for i in range(count):
            own = {name: value[i : i + 1] for name, value in inputs.items()}
            length = sum(len(text) for value in own.values() if value.dtype == object for text in value.flat)
            instances.append(_Instance(signature, own, length, group, loop.create_future(), now))
        return instances

    def _start_batches(self) -> None:
        """Starts as many batches as may start now, and sees to it that the next one starts in time."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self._waiting = [each for each in self._waiting if not each.answer.done()]  # not those whose client has gone
        while self._waiting and len(self._running) < self._parallel:
            batch = self._next_batch()
            left = batch[0].arrived + self._options.max_wait_ms / 1000 - time.monotonic()
            if self._running and len(batch) < self._options.max_batch_size and left > 0:
                self._timer = asyncio.get_running_loop().call_later(left, self._start_batches)
                break
            chosen = set(batch)
            self._waiting = [each for each in self._waiting if each not in chosen]
            if not self._running and self._is_short(batch):
                self._answer(batch, time.monotonic(), self._answers_to(batch))
            else:
                self._running.add(asyncio.create_task(self._compute(batch)))
        self._waiting_count.set(len(self._waiting))

    def _is_short(self, batch: list[_Instance]) -> bool:
        if self._seconds_per_text is None or not self._model.takes_even_time:
            return False
        return self._seconds_per_text * _size(batch) < _SHORT_SECONDS

    def _next_batch(self) -> list[_Instance]:
        """The oldest instance, with those of most nearly its length."""
        oldest = self._waiting[0]
        if oldest.group is None:
            return [oldest]
        alike = [each for each in self._waiting if each.group == oldest.group and _alike(each.length, oldest.length)]
        alike.sort(key=lambda each: abs(each.length - oldest.length))  # stable: older ones first
        return [oldest, *(each for each in alike if each is not oldest)][: self._options.max_batch_size]

    async def _compute(self, batch: list[_Instance]) -> None:
        started = time.monotonic()
        try:
            answers = await asyncio.get_running_loop().run_in_executor(self._threads, self._answers_to, batch)
        except Exception as error:  # the executor's own: it is shut down
            answers = [error] * len(batch)
        self._answer(batch, started, answers)
        task = asyncio.current_task()
        assert task
        self._running.discard(task)
        self._start_batches()

    def _answer(self, batch: list[_Instance], started: float, answers: Sequence[Tensors | BaseException]) -> None:
        seconds = time.monotonic() - started
        self._batch_size.observe(len(batch))
        self._batch_seconds.observe(seconds)
        last, of_late = seconds / _size(batch), self._seconds_per_text
        self._seconds_per_text = last if of_late is None else of_late + 0.1 * (last - of_late)
        for each, answer in zip(batch, answers, strict=True):
            self._queue_seconds.observe(started - each.arrived)
            if each.answer.done():
                continue
            if isinstance(answer, BaseException):
                each.answer.set_exception(answer)
            else:
                self._texts_cut.inc(int(np.sum(answer.get(exports.IS_TRUNCATED, 0))))
                each.answer.set_result(answer)

    def _answers_to(self, batch: Sequence[_Instance]) -> list[Tensors | BaseException]:
        return self._answers(batch[0].signature, [each.inputs for each in batch], batch[0].group is not None)

    def _answers(self, signature: str, instances: Sequence[Tensors], cut: bool) -> list[Tensors | BaseException]:
        """Computes a batch. Where it fails, its halves are tried, so that only the culprit is refused."""
        together = {name: np.concatenate([each[name] for each in instances]) for name in instances[0]}
        try:
            outputs = self._model.run(signature, together)
            return list(exports.split_rows(outputs)) if cut else [outputs]
        except Exception as error:
            half = len(instances) // 2
            if half:
                return self._answers(signature, instances[:half], cut) + self._answers(signature, instances[half:], cut)
            if isinstance(error, exports.RefusedTextsError):
                return [RequestError(400, f"the model refuses the input: {error}")]
            if not isinstance(error, RequestError):
                logs.error("the model failed", error, model=self._name, signature=signature)
                error = RequestError(500, f"the model failed: {type(error).__name__}; the server's log has more")
            return [error]


def _alike(length: int, other: int) -> bool:
    return max(length, other) <= max(_SHORT, _ALIKE * min(length, other))


def _size(instances: Sequence[_Instance]) -> float:
    """How much work instances are, in texts of up to _SHORT bytes."""
    return sum(max(1.0, each.length / _SHORT) for each in instances)
