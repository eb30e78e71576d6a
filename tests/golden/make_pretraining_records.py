"""Writes pretraining_records.json, the golden records: `python -m tests.golden.make_pretraining_records`.

The algorithm is written down here a second time, from the description of the published release and apart from
data_gen: it works on lists of token strings, keeps every instance in memory, and follows the release's order of random
draws. data_gen must give the same records (tests/data_gen/pipelines/test_reference.py).

The cases of real text need OFFICIAL_BERT_TEST_DATA.
"""

import hashlib
import json
import os
import pathlib
import random
import sys
import tempfile
from collections.abc import Iterable
from typing import Any

from official_bert.tokenization.exact import FullTokenizer
from tests.conftest import WORDS

GOLDEN_FILE = pathlib.Path(__file__).with_name("pretraining_records.json")

# The release's defaults, but for the small lengths and the few passes of the cases that need no real data.
SMALL = {"max_seq_length": 24, "max_predictions_per_seq": 4, "dupe_factor": 3}
DEFAULTS = {
    "do_lower_case": True,
    "do_whole_word_mask": False,
    "random_seed": 12345,
    "masked_lm_prob": 0.15,
    "short_seq_prob": 0.1,
}

_CORPUS_WORDS = "the cat dog sat ran on mat in sun cats playing walked and unaffable zebra".split()

Record = dict[str, list[float]]


def corpus_texts() -> list[str]:
    """Returns the texts of three files of short documents, nonsense by a seeded generator."""
    rng = random.Random(7)
    texts = []
    for _ in range(3):
        lines = []
        for _ in range(6):
            for _ in range(rng.randint(1, 7)):
                lines.append(" ".join(rng.choice(_CORPUS_WORDS) for _ in range(rng.randint(1, 9))) + ".")
            lines.append("")
        texts.append("\n".join(lines))
    return texts


def read_documents(texts: Iterable[str], tokenizer: FullTokenizer) -> list[list[list[str]]]:
    """Returns documents of tokenized lines. An empty line begins a document; the end of a text does not."""
    documents: list[list[list[str]]] = [[]]
    for text in texts:
        for line in text.removesuffix("\n").split("\n"):
            line = line.strip()
            if not line:
                documents.append([])
            tokens = tokenizer.tokenize(line)
            if tokens:
                documents[-1].append(tokens)
    return [document for document in documents if document]


class _Release:
    """The published algorithm, with its one generator of random numbers."""

    def __init__(self, documents: list[list[list[str]]], tokenizer: FullTokenizer, options: dict[str, Any]) -> None:
        self.options = {**DEFAULTS, **options}
        self.documents = documents
        self.vocab = tokenizer.vocab
        self.vocab_words = list(tokenizer.vocab)
        self.rng = random.Random(self.options["random_seed"])

    def records(self) -> list[Record]:
        """Returns all records in the order in which the release writes them."""
        self.rng.shuffle(self.documents)
        instances = []
        for _ in range(self.options["dupe_factor"]):
            for number in range(len(self.documents)):
                instances += self.instances_of(number)
        self.rng.shuffle(instances)
        return instances

    def instances_of(self, number: int) -> list[Record]:
        """Cuts one document into pairs of segments."""
        room = self.options["max_seq_length"] - 3
        wanted = room
        if self.rng.random() < self.options["short_seq_prob"]:
            wanted = self.rng.randint(2, room)
        document = self.documents[number]
        instances = []
        held: list[list[str]] = []
        line = 0
        while line < len(document):
            held.append(document[line])
            if line + 1 == len(document) or sum(map(len, held)) >= wanted:
                lines_of_a = 1
                if len(held) >= 2:
                    lines_of_a = self.rng.randint(1, len(held) - 1)
                a = [token for each in held[:lines_of_a] for token in each]
                b: list[str] = []
                # A single line draws no random number here.
                random_next = len(held) == 1 or self.rng.random() < 0.5
                if random_next:
                    for _ in range(10):
                        other = self.rng.randint(0, len(self.documents) - 1)
                        if other != number:
                            break
                    first = self.rng.randint(0, len(self.documents[other]) - 1)
                    for each in self.documents[other][first:]:
                        b += each
                        if len(b) >= wanted - len(a):
                            break
                    line -= len(held) - lines_of_a  # the lines that were not used come again
                else:
                    b = [token for each in held[lines_of_a:] for token in each]
                instances.append(self.finish(a, b, room, random_next))
                held = []
            line += 1
        return instances

    def finish(self, a: list[str], b: list[str], room: int, random_next: bool) -> Record:
        """Truncates a pair, masks it, and pads it to a record."""
        while len(a) + len(b) > room:
            longer = a if len(a) > len(b) else b
            if self.rng.random() < 0.5:
                del longer[0]
            else:
                longer.pop()
        tokens = ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
        segments = [0] * (len(a) + 2) + [1] * (len(b) + 1)
        length = len(tokens)
        labels = self.mask(tokens)
        positions = sorted(labels)

        def padded(values: Iterable[float], size: int, padding: float = 0) -> list[float]:
            some = list(values)
            return some + [padding] * (size - len(some))

        size, limit = self.options["max_seq_length"], self.options["max_predictions_per_seq"]
        return {
            "input_ids": padded((self.vocab[token] for token in tokens), size),
            "input_mask": padded([1] * length, size),
            "segment_ids": padded(segments, size),
            "masked_lm_positions": padded(positions, limit),
            "masked_lm_ids": padded((self.vocab[labels[position]] for position in positions), limit),
            "masked_lm_weights": padded([1.0] * len(positions), limit, 0.0),
            "next_sentence_labels": [int(random_next)],
        }

    def mask(self, tokens: list[str]) -> dict[int, str]:
        """Masks tokens in place; returns the original token of each position to be predicted."""
        groups: list[list[int]] = []
        for position, token in enumerate(tokens):
            if token in ("[CLS]", "[SEP]"):
                continue
            if self.options["do_whole_word_mask"] and groups and token.startswith("##"):
                groups[-1].append(position)
            else:
                groups.append([position])
        self.rng.shuffle(groups)
        most = max(1, round(len(tokens) * self.options["masked_lm_prob"]))
        most = min(most, self.options["max_predictions_per_seq"])
        labels: dict[int, str] = {}
        for group in groups:
            if len(labels) >= most:
                break
            if len(labels) + len(group) > most:
                continue
            for position in group:
                labels[position] = original = tokens[position]
                if self.rng.random() < 0.8:
                    tokens[position] = "[MASK]"
                elif self.rng.random() < 0.5:
                    tokens[position] = original
                else:
                    tokens[position] = self.vocab_words[self.rng.randint(0, len(self.vocab_words) - 1)]
        return labels


def make(
    texts: Iterable[str], tokenizer: FullTokenizer, options: dict[str, Any], outputs: int = 2
) -> list[list[Record]]:
    """Returns the records of each output file; the files are filled in turn."""
    records = _Release(read_documents(texts, tokenizer), tokenizer, options).records()
    return [records[number::outputs] for number in range(outputs)]


def digest(records: list[Record]) -> str:
    """Returns the hash of one file's records."""
    return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()


def make_case(case: dict[str, Any], vocab_file: str) -> dict[str, Any]:
    """Makes a case without real data: its name and options, numbers of records, first record and digests."""
    options = {**SMALL, **case["options"]}
    tokenizer = FullTokenizer(vocab_file, options.get("do_lower_case", True))
    files = make(corpus_texts(), tokenizer, options)
    return {
        "name": case["name"],
        "options": case["options"],
        "records": list(map(len, files)),
        "first": files[0][0],
        "digests": list(map(digest, files)),
    }


def make_real_case(case: dict[str, Any], data: pathlib.Path) -> dict[str, Any]:
    """Makes a case of real text: its name, text, vocabulary and options, numbers of records and digests."""
    tokenizer = FullTokenizer(str(data / "vocab" / case["vocab"]), case["options"]["do_lower_case"])
    texts = [(data / "text" / name).read_text(encoding="utf-8") for name in case["text"]]
    files = make(texts, tokenizer, case["options"])
    kept = {name: case[name] for name in ("name", "text", "vocab", "options")}
    return {**kept, "records": list(map(len, files)), "digests": list(map(digest, files))}


def main() -> None:
    data = os.environ.get("OFFICIAL_BERT_TEST_DATA")
    if not data:
        sys.exit("set OFFICIAL_BERT_TEST_DATA: some of the cases are made of real text")
    golden = json.loads(GOLDEN_FILE.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        vocab_file = pathlib.Path(folder) / "vocab.txt"
        vocab_file.write_text("\n".join(WORDS) + "\n", encoding="utf-8")
        cases = [make_case(case, str(vocab_file)) for case in golden["cases"]]
    real = [make_real_case(case, pathlib.Path(data)) for case in golden["real"]]
    text = json.dumps({"cases": cases, "real": real}, indent=1)
    changed = text != GOLDEN_FILE.read_text(encoding="utf-8")
    GOLDEN_FILE.write_text(text, encoding="utf-8")
    print(f"{GOLDEN_FILE}: {'changed' if changed else 'the same as before'}")


if __name__ == "__main__":
    main()
