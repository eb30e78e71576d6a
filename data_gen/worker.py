"""A process that makes blocks of instances and writes shards, as told; it needs no TensorFlow, and so little memory.

It reads a task a line from standard input and answers with a line: `{"block": [pass, number, first, last]}` or
`{"shard": number}`; both leave a file that appears whole, and neither is done twice.
"""

import dataclasses
import json
import os
import sys
import traceback
from collections.abc import Iterable
from typing import Any

import numpy as np

from official_bert import files, records
from data_gen import shuffle, vectorized, writer
from data_gen.instances import Law
from data_gen.masking import MaskingVocabulary
from data_gen.token_store import TokenStore
from official_bert.errors import UserError
from official_bert.manifest import sha256
from official_bert.tokenization import load_vocab

_RECORDS_AT_ONCE = 2000

CORPUS, RUN = "corpus", "run.json"


@dataclasses.dataclass(frozen=True)
class Run:
    """What all tasks of a run share.

    Attributes:
        seed: of everything random.
        law: the instances' settings, but for the vocabulary.
        vocab_file: the vocabulary.
        ids: type of the ids, such as "<u2".
        blocks: documents of each block: first, and one after the last.
        passes: how often the corpus is used.
        outputs: the shards.
        buckets_per_shard: how many buckets each shard is made of.
        compress: whether the shards are compressed with gzip.
    """

    seed: int
    law: dict[str, Any]
    vocab_file: str
    ids: str
    blocks: list[list[int]]
    passes: int
    outputs: list[str]
    buckets_per_shard: int
    compress: bool


class Maker:
    """Makes a run's blocks and shards, wherever the instances are kept in between.

    Args:
        run: the run's description.

    Attributes:
        layout: of the instances.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._law = Law(vocabulary=MaskingVocabulary.of(load_vocab(run.vocab_file)), **run.law)
        buckets = run.buckets_per_shard * len(run.outputs)
        self.layout = shuffle.Layout(
            self._law.max_seq_length, self._law.max_predictions_per_seq, np.dtype(run.ids), buckets
        )

    def block(self, store: TokenStore, number_of_pass: int, block: int) -> tuple[np.ndarray, dict[str, int]]:
        """Returns the rows of a block's instances, sorted by their keys, and their statistics."""
        random = vectorized.Random(self._run.seed, number_of_pass, block)
        first, last = self._run.blocks[block]
        instances = vectorized.make_instances(store, first, last, self._law, random)
        return shuffle.keyed(instances, random), shuffle.statistics(instances, self._law)

    def buckets(self, shard: int) -> range:
        """Returns the numbers of the buckets that a shard is made of."""
        return range(shard * self._run.buckets_per_shard, (shard + 1) * self._run.buckets_per_shard)

    def shard(self, number: int, buckets: Iterable[np.ndarray]) -> dict[str, Any]:
        """Writes a shard and returns what the manifest says of it.

        Args:
            number: of the shard.
            buckets: the rows of each of its buckets, in the order of their keys.
        """
        path = self._run.outputs[number]
        schema = shuffle.schema(self._law)
        count = 0
        with writer.open_shard(path, self._run.compress) as shard:
            for rows in buckets:
                for start in range(0, len(rows), _RECORDS_AT_ONCE):
                    batch = shuffle.features(rows[start : start + _RECORDS_AT_ONCE])
                    encoded = records.encode(batch, schema)
                    count += len(encoded)
                    shard.write(b"".join(map(writer.framed, encoded)))
        return {"file": os.path.basename(path), "records": count, "bytes": files.size(path), "sha256": sha256(path)}


class Worker:
    """Does the tasks of a run, with files in its working folder.

    Args:
        folder: the run's working folder, with the corpus and the run's description.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._run = Run(**json.loads(files.read_text(os.path.join(folder, RUN))))
        self._maker = Maker(self._run)
        self._store = TokenStore(os.path.join(folder, CORPUS), np.dtype(self._run.ids))

    def do(self, task: dict[str, Any]) -> dict[str, Any]:
        """Does a task and returns its statistics; of one done before, those of then."""
        name, arguments = next(iter(task.items()))
        done = os.path.join(self._folder, f"{name}-{'-'.join(map(str, arguments))}.json")
        if os.path.exists(done):
            return dict(json.loads(files.read_text(done)))
        result = self._block(*arguments) if name == "block" else self._shard(*arguments)
        files.write_text(done, json.dumps(result))
        return result

    def _spooled(self, number_of_pass: int, block: int) -> str:
        return os.path.join(self._folder, f"spooled-{number_of_pass}-{block}")

    def _block(self, number_of_pass: int, block: int) -> dict[str, int]:
        rows, statistics = self._maker.block(self._store, number_of_pass, block)
        shuffle.spool(self._spooled(number_of_pass, block), rows, self._maker.layout)
        return statistics

    def _shard(self, number: int) -> dict[str, Any]:
        spooled = [self._spooled(p, b) for p in range(self._run.passes) for b in range(len(self._run.blocks))]
        buckets = self._maker.buckets(number)
        return self._maker.shard(number, (shuffle.collect(spooled, each, self._maker.layout) for each in buckets))


def main() -> None:
    worker = Worker(sys.argv[1])
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = {"result": worker.do(json.loads(line))}
        except UserError as error:
            answer = {"user_error": str(error)}
        except Exception:
            answer = {"defect": traceback.format_exc()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
