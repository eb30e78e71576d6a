"""Counts the files that one has to read to follow paths through the code: `python tools/walks.py [WALK ...]`.

The table WALKS at the end of this file lists the paths. In training, a file counts if it is on the stack when a text is
read, becomes token ids, a batch and a loss, or when a metric is computed. In serving, it counts if one of its functions
is called during the request. Calls are noticed with sys.setprofile. Only commands and public names are used. To count
the files of another commit, run this file by its path, with PYTHONPATH set to a checkout of the commit.
"""

import argparse
import contextlib
import functools
import http.client
import inspect
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

import official_bert_cli

_ROOT = pathlib.Path(official_bert_cli.__file__).resolve().parent
_VOCAB = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat sat on a mat dog ran".split()
_SIZES: dict[str, Any] = {
    "vocab_size": len(_VOCAB), "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16, "max_position_embeddings": 32,
}  # fmt: skip
# A text becomes token ids, a batch, and a loss.
_TRAINING_STOPS = [
    "official_bert/tokenization/:encode",
    "official_bert/:padded_inputs",
    "keras/src/losses/loss.py:__call__",
]
_PORT = re.compile(r"127\.0\.0\.1:(\d+)")


class Walk:
    """Records the files on the path while `active` is true.

    Args:
        stops: If there are any, the files on the stack at the first call of each of these functions are recorded, from
            the caller to the callee. Otherwise, all files whose functions are called are, in the order of their first
            calls. A stop is written "part of its file's path:function", or "module:function" if it is written in C.
    """

    def __init__(self, *stops: str) -> None:
        self.files: dict[str, None] = {}
        self.active = True
        self._stops = {stop.split(":")[1]: stop.split(":")[0] for stop in stops}
        self._follows_stops = bool(stops)

    def _note(self, frame: Any, event: str, argument: Any) -> None:
        if not self.active or event not in ("call", "c_call"):
            return
        if not self._follows_stops:
            if event == "call" and (name := _name_file(frame)):
                self.files.setdefault(name)
            return
        function = frame.f_code.co_name if event == "call" else argument.__name__
        where = frame.f_code.co_filename if event == "call" else argument.__module__ or ""
        if function in self._stops and self._stops[function] in where:
            del self._stops[function]
            stack = []
            while frame:
                stack += [name] if (name := _name_file(frame)) else []
                frame = frame.f_back
            self.files.update(dict.fromkeys(reversed(stack)))

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            if self._stops:
                print(f"not reached: {', '.join(self._stops)}", file=sys.stderr)


def _name_file(frame: Any) -> str | None:
    """Returns the path of a frame's file in the checkout. None if it belongs to tools, tests or other code."""
    path = pathlib.Path(frame.f_code.co_filename)
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # the body of a module or class
        return None
    if not path.is_relative_to(_ROOT):
        return None
    name = str(path.relative_to(_ROOT))
    return None if name.startswith((".venv", "tools", "tests")) else name


def run_command(*arguments: str) -> None:
    """Runs official-bert in this process."""
    sys.argv = ["official-bert", *arguments]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(sys.stderr):
        official_bert_cli.main()


def pretrain(folder: pathlib.Path) -> list[str]:
    (folder / "text.txt").write_text("the cat sat\non a mat\n\nthe dog ran\non a mat\n" * 9)
    sizes = ["--max_seq_length=16", "--max_predictions_per_seq=3"]
    records = f"{folder}/a.tfrecord"
    run_command(
        "make-records", f"--input_file={folder}/text.txt", f"--output_file={records}",
        f"--vocab_file={folder}/vocab.txt", *sizes, "--num_workers=1",
    )  # fmt: skip
    parsing, walk = Walk(), Walk("official_bert/:replica_step")
    flags = [f"--input_file={records}", f"--output_dir={folder}/run", f"--bert_config_file={folder}/config.json"]
    flags += [f"--vocab_file={folder}/vocab.txt", "--do_train", "--num_train_steps=1", "--train_batch_size=2", *sizes]
    with parsing.counting():
        official_bert_cli.load("pretrain").parse(flags)
    with walk.counting():
        run_command("pretrain", *flags)
    return list(parsing.files | walk.files)


def fit(folder: pathlib.Path) -> list[str]:
    import official_bert

    config = official_bert.BertConfig(**_SIZES)
    model = official_bert.TextClassifier.from_checkpoint(
        config, labels=["a", "b"], vocab_file=f"{folder}/vocab.txt", max_seq_length=16
    )
    walk = Walk(*_TRAINING_STOPS)
    with walk.counting():
        model.fit(["the cat", "a dog"], [0, 1], batch_size=2, epochs=1, verbose=0)
    return list(walk.files)


def finetune(folder: pathlib.Path) -> list[str]:
    (folder / "rows.csv").write_text("text,label\n" + "the cat,a\na dog,b\n" * 4)
    walk = Walk("_csv:reader", *_TRAINING_STOPS, "official_bert/:accuracy")
    flags = [f"--train_file={folder}/rows.csv", f"--eval_file={folder}/rows.csv", f"--init={folder}/config.json"]
    flags += [f"--vocab_file={folder}/vocab.txt", f"--output_dir={folder}/model", "--task=table", "--do_train"]
    with walk.counting():
        run_command("finetune", *flags, "--do_eval", "--num_train_epochs=1", "--max_seq_length=16")
    return list(walk.files)


def serve(folder: pathlib.Path, name: str) -> list[str]:
    finetune(folder)
    run_command("export", f"--model_dir={folder}/model", f"--export_dir={folder}/{name}", f"--format={name}")
    walk = Walk()
    walk.active = False
    reading, writing = os.pipe()
    log = os.dup(sys.stderr.fileno())
    os.dup2(writing, sys.stderr.fileno())
    thread = threading.Thread(target=_ask, args=(walk, reading, log))
    thread.start()
    with walk.counting():
        run_command("serve", f"--model=m={folder}/{name}", "--port=0")
    os.dup2(log, sys.stderr.fileno())
    thread.join()
    return list(walk.files)


def _ask(walk: Walk, reading: int, log: int) -> None:
    """Waits until the server's log names the port and the loaded model, sends one request, and stops the server."""
    port = None
    for line in os.fdopen(reading):
        os.write(log, line.encode())
        port = port or ((found := _PORT.search(line)) and int(found[1]))
        if '"ready"' in line:
            break
    connection = http.client.HTTPConnection("127.0.0.1", port or 0, timeout=60)
    walk.active = True
    body = json.dumps({"instances": ["the cat sat"]})
    try:
        connection.request("POST", "/v1/models/m:predict", body, {"Content-Type": "application/json"})
        os.write(log, connection.getresponse().read() + b"\n")
    finally:
        walk.active = False
        os.kill(os.getpid(), signal.SIGTERM)


WALKS: dict[str, tuple[str, Callable[[pathlib.Path], list[str]]]] = {
    "pretrain": ("the flags of official-bert pretrain, and the call stack of the training step", pretrain),
    "fit": ("a text through TextClassifier.fit to the loss", fit),
    "finetune": ("a row of a CSV file through official-bert finetune to a metric", finetune),
    "serve_saved_model": ("a request to a served SavedModel", functools.partial(serve, name="saved_model")),
    "serve_onnx": ("a request to a served ONNX export", functools.partial(serve, name="onnx")),
}


def main() -> None:
    descriptions = "\n".join(f"  {name}: {description}" for name, (description, _) in WALKS.items())
    parser = argparse.ArgumentParser(
        description="Counts the files that one has to read to follow paths through the code.",
        epilog=f"walks:\n{descriptions}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("walks", nargs="*", metavar="WALK", help="Path to follow. Defaults to all of them.")
    names = parser.parse_args().walks or list(WALKS)
    if unknown := set(names) - set(WALKS):
        parser.error(f"unknown walks: {', '.join(sorted(unknown))}")
    for name in names:
        if len(names) > 1:  # each walk in a process of its own
            subprocess.run([sys.executable, __file__, name], check=False)
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            (folder / "vocab.txt").write_text("\n".join(_VOCAB) + "\n")
            (folder / "config.json").write_text(json.dumps(_SIZES))
            files = WALKS[name][1](folder)
        print(f"{name}: {len(files)} files", *files, sep="\n  ", flush=True)


if __name__ == "__main__":
    main()
