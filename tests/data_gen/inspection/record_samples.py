"""Small valid records, which some tests then damage."""

import dataclasses
import pathlib

import numpy as np

from data_gen.inspection.verification import Findings, verify
from data_gen.options import VerificationOptions
from data_gen.pipelines import writer
from official_bert.data import record_codec, record_schema
from tests.make import WORDS

LENGTH, PREDICTIONS = 10, 3
SCHEMA = record_schema.pretraining_schema(LENGTH, PREDICTIONS)
UNMASKED = [name for name in SCHEMA if not name.startswith("masked_lm_")]
THE, CAT, DOG, SAT, CLS, SEP, MASK, UNK = (WORDS.index(w) for w in "the cat dog sat [CLS] [SEP] [MASK] [UNK]".split())

Values = dict[str, list[float]]


def good(text: str = "[CLS] the [MASK] [SEP] dog sat [SEP]", **changes: list[float]) -> Values:
    """Returns a valid record with the tokens of a text: [CLS] the [MASK]{cat} [SEP] dog{sat} sat [SEP], and padding."""
    return {
        "input_ids": [*map(WORDS.index, text.split()), 0, 0, 0],
        "input_mask": [1] * 7 + [0] * 3,
        "segment_ids": [0] * 4 + [1] * 3 + [0] * 3,
        "masked_lm_positions": [2, 4, 0],
        "masked_lm_ids": [CAT, SAT, 0],
        "masked_lm_weights": [1.0, 1.0, 0.0],
        "next_sentence_labels": [1],
        **changes,
    }


def keep_tokens() -> Values:
    """Returns a record whose segments are consecutive and whose second prediction keeps the original token."""
    return good("[CLS] the [MASK] [SEP] sat sat [SEP]", next_sentence_labels=[0])


def check(**options: object) -> Findings:
    """Runs verify-records."""
    return verify(VerificationOptions(**options))  # type: ignore[arg-type]


def problems(**options: object) -> list[str]:
    return check(**options).problems


def serialize(values: Values, names: list[str] | None = None) -> bytes:
    """Encodes a record, whatever the number of its values."""
    schema = {name: dataclasses.replace(SCHEMA[name], shape=(len(values[name]),)) for name in names or SCHEMA}
    return record_codec.encode({name: np.array([values[name]]) for name in schema}, schema)[0]


def write(path: pathlib.Path, instances: list[Values], names: list[str] | None = None) -> str:
    with writer.open_shard(str(path), gzip=path.suffix == ".gz") as shard:
        shard.write(writer.frame_records([serialize(instance, names) for instance in instances]))
    return str(path)
