"""Measures answers to text, against one request at a time and Hugging Face: `python -m tools.benchmarks.serving`.

What many clients get stands beside what Hugging Face's pipeline does with as many texts at once. A latency of a batch
is that of each of its texts.

All is measured in turn in one run, on the same weights (random ones) and the same sentences. The clients share the
processor with what they measure.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import pathlib
import selectors
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from official_bert.checkpoints import finetuned
from official_bert.checkpoints.checkpoint import Checkpoint
from official_bert.checkpoints.formats import hugging_face
from official_bert.errors import UserError
from official_bert.export import portable, saved_model
from official_bert.export.options import DYNAMIC_INT8, FLOAT32, ONNX, ONNX_RUNTIME, SavedModelOptions
from official_bert.export.source import read_source
from official_bert.modeling import task_models
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.utils.command_line import Command
from official_bert.utils.flags import option
from official_bert.utils.progress import Progress
from tools.benchmarks import corpus
from tools.benchmarks.serving_load import start_server

ROOT = pathlib.Path(__file__).parents[2]
SIZES = {"tiny": "uncased_L-2_H-128_A-2", "base": "uncased_L-12_H-768_A-12"}
NAMES = {"tiny": "BERT-Tiny", "base": "BERT-Base"}
CLIENTS = 32
CLOSE = 1e-4
_Asked = TypeVar("_Asked")
_HEAD = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the benchmark."""

    sizes: list[str] = option(["tiny", "base"], "Which models: tiny, base.")
    rounds: int = option(5, "How often each is measured; a first round warms up.")
    seconds: float = option(3.0, "How long each is measured in a round.")


def make_models(size: str, vocab: str, folder: str) -> tuple[str, str, str]:
    """Writes a classifier with random weights; returns its folder, the export's, and one for Hugging Face."""
    config = BertConfig.from_json_file(str(ROOT / "configs" / "models" / f"{SIZES[size]}.json"))
    config = dataclasses.replace(config, vocab_size=len(vocab.splitlines()))
    model = task_models.build_classifier(build_encoder(config, seed=1), 2, seed=2)
    labels = ["no", "yes"]
    description = {"task": "bench", "kind": task_models.CLASSIFICATION, "pair": False, "labels": labels,
                   "num_choices": None, "max_seq_length": 128}  # fmt: skip
    trained, exported, theirs = (f"{folder}/{size}-{name}" for name in ("trained", "exported", "theirs"))
    finetuned.save(trained, model, description, config, vocab)
    saved_model.export(SavedModelOptions(model_dir=trained, export_dir=exported))
    weights = {variable.path: variable.numpy() for variable in model.variables if "seed" not in variable.path}
    pathlib.Path(theirs).mkdir()
    hugging_face.write(Checkpoint(config, weights, vocab, labels=tuple(labels)), theirs)
    return trained, exported, theirs


def export_onnx(trained: str, text: str, quantization: str) -> str:
    """Exports a classifier for ONNX Runtime; returns the export's folder, beside that of the model."""
    folder, examples = f"{trained}-{quantization}", pathlib.Path(f"{trained}.jsonl")
    examples.write_text(json.dumps({"text": text, "label": "no"}) + "\n", encoding="utf-8")
    options = SavedModelOptions(model_dir=trained, export_dir=folder, engine=ONNX_RUNTIME)
    if quantization != FLOAT32:  # the weights are random ones: their score says nothing
        options = dataclasses.replace(options, quantization=quantization, eval_file=str(examples), max_loss=1.0)
    saved_model.export(options)
    return folder


def one_at_a_time(answer: Callable[[_Asked], object], asked: Iterator[_Asked], lasting: float) -> list[float]:
    """Returns the seconds that each text, or batch of texts, took, for as long as is said; one at least."""
    seconds: list[float] = []
    end = time.perf_counter() + lasting
    while (start := time.perf_counter()) < end or not seconds:
        answer(next(asked))
        seconds.append(time.perf_counter() - start)
    return seconds


class _Client:
    """Asks over one connection, one request after the other; as light as can be, since it shares the processor."""

    def __init__(self, address: str, texts: Iterator[str], seconds: list[float]) -> None:
        host, port = address.split(":")
        self.connection = socket.create_connection((host, int(port)))
        self._texts, self._seconds = texts, seconds
        self._received = b""
        self._started = 0.0

    def ask(self) -> None:
        body = json.dumps({"instances": [next(self._texts)]}).encode()
        self._started = time.perf_counter()
        self.connection.sendall(_HEAD % len(body) + body)

    def read(self) -> bool:
        """Reads what has come; returns whether it is a whole answer."""
        more = self.connection.recv(1 << 16)
        self._received += more
        head, _, body = self._received.partition(b"\r\n\r\n")
        if not more or (body and b" 200 " not in head[:15]):
            raise RuntimeError(f"the server answered {self._received!r}")
        if not body or len(body) < int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]):
            return False
        self._received = b""
        self._seconds.append(time.perf_counter() - self._started)
        return True


def over_http(address: str, texts: Iterator[str], clients: int, lasting: float) -> list[float]:
    """Returns the seconds that each request took, of some clients at the same time, for as long as is said."""
    seconds: list[float] = []
    end = time.perf_counter() + lasting
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as connections:
        for client in [_Client(address, texts, seconds) for _ in range(clients)]:
            connections.enter_context(client.connection)
            selector.register(client.connection, selectors.EVENT_READ, client)
            client.ask()
        while selector.get_map():
            for key, _ in selector.select():
                if key.data.read():
                    if time.perf_counter() < end:
                        key.data.ask()
                    else:
                        selector.unregister(key.fileobj)
    return seconds


def hugging_face_pipeline(folder: str) -> Callable[[list[str]], list[list[dict[str, Any]]]] | None:
    """Their pipeline on the same weights, for a batch; None where transformers or torch are not installed."""
    try:
        import transformers
    except ImportError:
        return None
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    classify: Any = transformers.pipeline("text-classification", model=folder, device="cpu", top_k=None)
    return lambda batch: classify(batch, truncation=True, max_length=128, batch_size=len(batch))


def onnx_runtime(trained: str, theirs: str) -> Callable[[str], np.ndarray] | None:
    """The model in ONNX Runtime behind Hugging Face's tokenizer, or None where one of them is not installed."""
    try:
        import onnxruntime
        import transformers
    except ImportError:
        return None
    path = f"{trained}.onnx"
    portable.convert(read_source(trained), ONNX, False, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(theirs)
    names = {"input_ids": "input_ids", "input_mask": "attention_mask", "segment_ids": "token_type_ids"}

    def answer(text: str) -> np.ndarray:
        encoded = tokenizer([text], truncation=True, max_length=128, return_tensors="np")
        (logits,) = session.run(None, {name: encoded[each].astype(np.int32) for name, each in names.items()})
        powers = np.exp(logits[0] - logits[0].max())
        return np.asarray(powers / powers.sum())

    return answer


def forever(texts: list[str]) -> Iterator[str]:
    """The texts, again and again."""
    while True:
        yield from texts


def batches_of(texts: Iterator[str], size: int) -> Iterator[list[str]]:
    """The texts of an endless iterator, so many at once."""
    while True:
        yield list(itertools.islice(texts, size))


def measure(size: str, texts: list[str], vocab: str, folder: str, options: Options) -> None:
    """Prints the table of one size."""
    trained, exported, theirs = make_models(size, vocab, folder)
    serve = tf.saved_model.load(f"{exported}/1").signatures["serving_default"]
    pipeline, onnx = hugging_face_pipeline(theirs), onnx_runtime(trained, theirs)
    if onnx:
        for text in texts[:20]:
            if not np.allclose(serve(text=tf.constant([text]))["probabilities"][0], onnx(text), atol=CLOSE):
                raise RuntimeError(f"the model differs in ONNX Runtime for {text!r}")
    if pipeline:
        for text in texts[:20]:
            own = dict(zip(("no", "yes"), serve(text=tf.constant([text]))["probabilities"][0].numpy(), strict=True))
            for each in pipeline([text])[0]:
                if abs(own[each["label"]] - each["score"]) > CLOSE:
                    raise RuntimeError(f"the two models differ: {own} and {each} for {text!r}")
    with contextlib.ExitStack() as servers:
        batching = servers.enter_context(start_server({"m": exported}))
        alone = servers.enter_context(start_server({"m": exported}, "--max_batch_size=1"))
        engines = {
            name: servers.enter_context(start_server({"m": export_onnx(trained, texts[0], quantization)}))
            for name, quantization in (("ONNX Runtime", FLOAT32), ("ONNX Runtime, 8-bit matrices", DYNAMIC_INT8))
        }
        source, lasting = forever(texts), options.seconds
        call = lambda text: serve(text=tf.constant([text]))["probabilities"].numpy()  # noqa: E731
        candidates: dict[str, tuple[int, Callable[[], list[float]]]] = {
            "the SavedModel called in Python": (1, lambda: one_at_a_time(call, source, lasting)),
            "serve, 1 client": (1, lambda: over_http(batching, source, 1, lasting)),
            "serve without batches, 32 clients": (CLIENTS, lambda: over_http(alone, source, CLIENTS, lasting)),
            "serve, 32 clients": (CLIENTS, lambda: over_http(batching, source, CLIENTS, lasting)),
        }
        for name, address in engines.items():
            for clients in (1, CLIENTS):
                title = f"serve of {name}, {clients} client{'s' if clients > 1 else ''}"
                candidates[title] = (clients, functools.partial(over_http, address, source, clients, lasting))
        if onnx:
            candidates = {"ONNX Runtime": (1, lambda: one_at_a_time(onnx, source, lasting)), **candidates}
        if pipeline:
            singles, batches = batches_of(source, 1), batches_of(source, CLIENTS)
            candidates = {
                "Hugging Face pipeline": (1, lambda: one_at_a_time(pipeline, singles, lasting)),
                **candidates,
                f"Hugging Face pipeline, {CLIENTS} texts at once": (
                    CLIENTS,
                    lambda: one_at_a_time(pipeline, batches, lasting),
                ),
            }
        else:
            print("transformers or torch is not installed: no comparison with Hugging Face", file=sys.stderr)
        seconds: dict[str, list[list[float]]] = {name: [] for name in candidates}
        progress = Progress(NAMES[size], options.rounds + 1, "rounds")
        for number in range(options.rounds + 1):
            for name, (_, run) in candidates.items():
                measured = run()
                if number:  # the first round warms up
                    seconds[name].append(measured)
            progress.update(number + 1)
    table(NAMES[size], {name: (candidates[name][0], rounds) for name, rounds in seconds.items()})


def table(title: str, measured: dict[str, tuple[int, list[list[float]]]]) -> None:
    """Prints latencies and rates; a rate is the median over the rounds."""
    lengths = "sentences of English, one a request"
    print(f"\n{title}, {lengths}\n\n| | p50, ms | p99, ms | requests/s | ratio |\n|---|---|---|---|---|")
    first = None
    for name, (clients, rounds) in measured.items():
        latencies = np.concatenate([np.array(each) for each in rounds])
        rate = statistics.median(clients * len(each) / sum(each) for each in rounds)
        first = first or rate
        p50, p99 = 1000 * np.percentile(latencies, [50, 99])
        print(f"| {name} | {p50:.1f} | {p99:.1f} | {rate:,.0f} | {rate / first:.2f} |", flush=True)


def main(options: Options) -> None:
    unknown = set(options.sizes) - SIZES.keys()
    if unknown or options.rounds < 1:
        raise UserError(
            f"--sizes={','.join(options.sizes)} --rounds={options.rounds}; give tiny, base or both, and 1 or more"
        )
    with tempfile.TemporaryDirectory() as folder:
        sentences, _, vocab_file = corpus.write_text(folder)
        vocab = pathlib.Path(vocab_file).read_text(encoding="utf-8")
        texts = sentences[:: max(1, len(sentences) // 2000)]
        for size in options.sizes:
            measure(size, texts, vocab, folder, options)


if __name__ == "__main__":
    Command(
        program="python -m tools.benchmarks.serving",
        summary="Measures answers to text, against one request at a time and Hugging Face",
        main=main,
        options=(Options,),
    ).run()
