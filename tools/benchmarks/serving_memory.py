"""The server's memory over requests of random lengths and sizes: `python -m tools.benchmarks.serving_memory`.

After the first part of the requests memory must not grow any more, but for GROWTH: what it keeps for each shape, such
as oneDNN's kernels, has a limit.
"""

import contextlib
import dataclasses
import http.client
import itertools
import json
import pathlib
import random
import tempfile
import threading

from official_bert.export import saved_model
from official_bert.export.options import SavedModelOptions
from official_bert.modeling.config import BertConfig
from official_bert.modeling.task_models import CLASSIFICATION, TAGGING
from official_bert.utils.command_line import Command
from official_bert.utils.flags import option
from tests.conftest import WORDS as VOCABULARY
from tests.export.exported_models import save_finetuned
from tools.benchmarks.serving_load import GROWTH, WORDS, megabytes, start_server

TINY = BertConfig(len(VOCABULARY), 128, 2, 2, 512, max_position_embeddings=512)
_MOST_WORDS = 6000  # of a request


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the benchmark."""

    requests: int = option(100_000, "How many requests to send.")
    first: int = option(10_000, "After how many the level is taken that is compared with the last.")
    clients: int = option(8, "How many ask at the same time.")


def client(
    number: int, address: str, numbers: "itertools.count[int]", options: Options, levels: dict[int, int]
) -> None:
    """Asks for random texts over one connection; notes the memory at some numbers of requests."""
    chance = random.Random(number)
    with contextlib.closing(http.client.HTTPConnection(address, timeout=120)) as connection:
        while (count := next(numbers)) <= options.requests:
            words = int(2 ** chance.uniform(0, 12))
            texts = [
                " ".join(chance.choices(WORDS, k=chance.randint(1, words)))
                for _ in range(min(int(2 ** chance.uniform(0, 8)), 1 + _MOST_WORDS // words))
            ]
            kind = chance.choice([CLASSIFICATION, CLASSIFICATION, TAGGING])
            connection.request("POST", f"/v1/models/{kind}:predict", json.dumps({"instances": texts}))
            response = connection.getresponse()
            answer = response.read()
            assert response.status == 200, answer[:500]
            if count in (options.first, options.requests) or count % (options.requests // 20) == 0:
                levels[count] = round(megabytes(address))
                print(f"{count:,} requests: {levels[count]:,} MB", flush=True)


def main(options: Options) -> int:
    with tempfile.TemporaryDirectory() as name:
        folders = {kind: f"{name}/{kind}" for kind in (CLASSIFICATION, TAGGING)}
        for kind, folder in folders.items():
            model = save_finetuned(pathlib.Path(name) / f"{kind}-model", kind, TINY, max_seq_length=512)
            saved_model.export(SavedModelOptions(model_dir=model, export_dir=folder))
        levels: dict[int, int] = {}
        numbers = itertools.count(1)
        with start_server(folders) as address:
            threads = [
                threading.Thread(target=client, args=[number, address, numbers, options, levels])
                for number in range(options.clients)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    if options.requests not in levels:
        print("a client failed")
        return 1
    before, after = levels[options.first], levels[options.requests]
    print(f"memory: {before:,} MB after {options.first:,} requests, {after:,} MB after {options.requests:,}")
    return 1 if after > GROWTH * before else 0


if __name__ == "__main__":
    Command(
        program="python -m tools.benchmarks.serving_memory",
        summary="Measures the server's memory over requests of random lengths and sizes",
        main=main,
        options=(Options,),
    ).run()
