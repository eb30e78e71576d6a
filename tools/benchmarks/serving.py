"""Compares the speed of answering single texts with Hugging Face's pipeline: `python -m tools.benchmarks.serving`.

All programs have the same (random) weights and answer the same sentences in turn. The clients of the server share the
processor with it. Compare 32 clients with the row of 32 texts in one call, whose latency is the time of the whole call.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401 - operations of the SavedModel

from official_bert.inference import exports
from official_bert.inference.onnx_model import disable_telemetry
from official_bert.utils.flags import option
from tools.benchmarks import measuring, samples

CLIENTS = 32
_CLOSE = 1e-4
_HEAD = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
_TICKS = os.sysconf("SC_CLK_TCK")  # ticks per second in /proc

Answer = Callable[[list[str]], np.ndarray]  # texts to probabilities


@dataclasses.dataclass(frozen=True)
class Options(measuring.Options):
    """The flags of the benchmark."""

    seconds: float = option(3.0, "How long each program answers in a round.")


def make_metrics(latencies: list[float], texts: int, cpu: float) -> measuring.Metrics:
    """Computes the metrics of calls that answer several texts each, or of requests by several clients.

    Args:
        latencies: Seconds of each call or request.
        texts: Number of texts that are answered at the same time.
        cpu: Processor milliseconds per text.
    """
    p50, p99 = 1000 * np.percentile(latencies, [50, 99])
    rate = texts * len(latencies) / sum(latencies)
    return {"p50, ms": p50, "p99, ms": p99, "texts/s": rate, "CPU-ms a text": cpu}


def call(answer: Answer, texts: Iterator[str], batch_size: int, lasting: float) -> measuring.Metrics:
    """Measures calls in this process for `lasting` seconds, one after the other. Each answers `batch_size` texts."""
    latencies: list[float] = []
    end, cpu = time.perf_counter() + lasting, time.process_time()
    while (start := time.perf_counter()) < end or not latencies:
        answer(list(itertools.islice(texts, batch_size)))
        latencies.append(time.perf_counter() - start)
    cpu = time.process_time() - cpu
    return make_metrics(latencies, batch_size, 1000 * cpu / len(latencies) / batch_size)


class Client:
    """A client that sends one request after the other. It does little work itself, since it shares the processor."""

    def __init__(self, port: int, texts: Iterator[str], latencies: list[float]) -> None:
        self.connection = socket.create_connection(("localhost", port))
        self._texts, self._latencies = texts, latencies
        self._received = b""

    def ask(self) -> None:
        """Sends the next request."""
        body = json.dumps({"instances": [next(self._texts)]}).encode()
        self._started = time.perf_counter()
        self.connection.sendall(_HEAD % len(body) + body)

    def read(self) -> bool:
        """Reads the data that have arrived. Returns whether the answer is complete."""
        more = self.connection.recv(1 << 16)
        self._received += more
        head, _, body = self._received.partition(b"\r\n\r\n")
        if not more or (body and b" 200 " not in head[:15]):
            raise RuntimeError(f"the server answered {self._received!r}")
        if not body or len(body) < int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]):
            return False
        self._received = b""
        self._latencies.append(time.perf_counter() - self._started)
        return True


def request(server: tuple[int, int], texts: Iterator[str], clients: int, lasting: float) -> measuring.Metrics:
    """Measures requests to a server by several clients at the same time.

    Args:
        server: The port and the process id of the server.
        texts: The texts to send.
        clients: Number of clients.
        lasting: Number of seconds to send requests.
    """
    port, pid = server
    latencies: list[float] = []
    end, cpu = time.perf_counter() + lasting, read_cpu_seconds(pid)
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as connections:
        for client in [Client(port, texts, latencies) for _ in range(clients)]:
            connections.enter_context(client.connection)
            selector.register(client.connection, selectors.EVENT_READ, client)
            client.ask()
        while selector.get_map():
            for key, _ in selector.select():
                if not key.data.read():
                    continue
                if time.perf_counter() < end:
                    key.data.ask()
                else:
                    selector.unregister(key.fileobj)
    return make_metrics(latencies, clients, 1000 * (read_cpu_seconds(pid) - cpu) / len(latencies))


def read_cpu_seconds(pid: int) -> float:
    """Returns the processor seconds that a running process has used."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@contextlib.contextmanager
def start_server(export: str) -> Iterator[tuple[int, int]]:
    """Serves an export under the name m within the context. Yields the server's port and process id."""
    command = [*measuring.COMMAND, "serve", "--port=0", f"--model=m={export}"]
    log = pathlib.Path(f"{export}.log")
    with log.open("w") as stderr, subprocess.Popen(command, cwd=measuring.ROOT, stderr=stderr) as server:
        try:
            while '"event":"ready"' not in log.read_text():
                if server.poll() is not None:
                    raise SystemExit(f"the server did not start:\n{log.read_text()}")
                time.sleep(0.1)
            (ready,) = [line for line in log.read_text().splitlines() if '"event":"ready"' in line]
            yield int(json.loads(ready)["url"].rpartition(":")[2]), server.pid
        finally:
            server.send_signal(signal.SIGTERM)


def load_saved_model(folder: str) -> Answer:
    """Returns a function that answers texts with a SavedModel."""
    serve = tf.saved_model.load(f"{folder}/1").signatures["serving_default"]
    return lambda texts: serve(text=tf.constant(texts))["probabilities"].numpy()


def load_pipeline(folder: str) -> Answer:
    """Returns a function that answers texts with Hugging Face's pipeline."""
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    classify: Any = transformers.pipeline("text-classification", model=folder, device="cpu", top_k=None)

    def answer(texts: list[str]) -> np.ndarray:
        found = classify(texts, truncation=True, max_length=128, batch_size=len(texts))
        scores = [{each["label"]: each["score"] for each in row} for row in found]
        return np.array([[row[label] for label in samples.LABELS] for row in scores])

    return answer


def load_onnx_runtime(export: str, tokenizer_folder: str) -> Answer:
    """Returns a function that answers texts with ONNX Runtime and Hugging Face's tokenizer."""
    disable_telemetry()
    import onnxruntime
    import transformers

    session = onnxruntime.InferenceSession(f"{export}/1/{exports.ONNX_FILE}", providers=["CPUExecutionProvider"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder)
    names = {"input_ids": "input_ids", "input_mask": "attention_mask", "segment_ids": "token_type_ids"}

    def answer(texts: list[str]) -> np.ndarray:
        encoded = tokenizer(texts, truncation=True, max_length=128, return_tensors="np", padding=True)
        (logits,) = session.run(None, {name: encoded[each].astype(np.int64) for name, each in names.items()})
        powers = np.exp(logits - logits.max(-1, keepdims=True))
        return np.asarray(powers / powers.sum(-1, keepdims=True))

    return answer


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as servers:
        sentences, _, vocab_file = samples.write_text(folder)
        texts = sentences[:: max(1, len(sentences) // 2000)]
        trained = samples.write_classifier(options.size, vocab_file, folder)
        exported, theirs = samples.export(trained, folder), samples.convert(trained, "hugging_face", folder)
        pipeline, saved_model = load_pipeline(theirs), load_saved_model(exported["SavedModel"])
        onnx_runtime = load_onnx_runtime(exported["ONNX Runtime"], theirs)
        for answer in (saved_model, onnx_runtime):
            np.testing.assert_allclose(answer(texts[:20]), pipeline(texts[:20]), atol=_CLOSE)
        source, lasting = itertools.cycle(texts), options.seconds
        calls = {
            "Hugging Face pipeline": (pipeline, 1),
            f"Hugging Face pipeline, {CLIENTS} texts at once": (pipeline, CLIENTS),
            "ONNX Runtime": (onnx_runtime, 1),
            "SavedModel called in Python": (saved_model, 1),
        }
        programs: dict[str, Callable[[], measuring.Metrics]] = {
            name: functools.partial(call, answer, source, size, lasting) for name, (answer, size) in calls.items()
        }
        for (name, export), clients in itertools.product(exported.items(), (1, CLIENTS)):
            if clients == 1:
                server = servers.enter_context(start_server(export))
            title = f"serve, {name}, {clients} client{'s' * (clients > 1)}"
            programs[title] = functools.partial(request, server, source, clients, lasting)
        title = f"Answers to single sentences by BERT-{options.size.capitalize()}"
        measuring.compare(title, programs, options.rounds, "texts/s")


if __name__ == "__main__":
    measuring.run_benchmark(main, Options)
