"""The record files of a run: found, checked against manifest, vocabulary and model, and turned into batches."""

import dataclasses
import itertools
import json
import os
import zlib
from typing import Any

import tensorflow as tf

from official_bert import files, manifest, records
from official_bert.config import BertConfig
from official_bert.dynamic_masking import DynamicMasking
from official_bert.errors import UserError
from official_bert.input_pipeline import evaluation_batches, places, training_batches
from official_bert.tokenization import load_vocab

# Before the first step; every other record is checked when it is read.
_FILES_CHECKED, _RECORDS_CHECKED = 16, 100


@dataclasses.dataclass(frozen=True)
class RecordFiles:
    """Record files that fit together and the model.

    Attributes:
        paths: the files.
        schema: of the records in them.
        masking: hides tokens of records that were written without masks; None where they have them.
        readable: of each file, the stretches of records that can be read, as first record and number; None for all.
        manifests: that describe these files.
        described: the manifest's entry of each file that has one.
        damaged: how many records are left out because they cannot be read.
    """

    paths: list[str]
    schema: records.Schema
    masking: DynamicMasking | None
    readable: list[list[tuple[int, int]]] | None
    manifests: list[manifest.Manifest]
    described: dict[str, manifest.Shard]
    damaged: int = 0

    @classmethod
    def checked(
        cls,
        patterns: list[str],
        flag: str,
        max_seq_length: int,
        max_predictions_per_seq: int,
        config: BertConfig,
        vocab_file: str | None,
        skip_damaged: bool = False,
    ) -> "RecordFiles":
        """Finds the files and checks all that can be checked before the first step.

        Args:
            patterns: file names or glob patterns.
            flag: the flag that they came from, without dashes.
            max_seq_length: expected length of the records.
            max_predictions_per_seq: expected number of predictions.
            config: the model.
            vocab_file: the vocabulary, if known; needed where tokens are to be hidden while training.
            skip_damaged: whether damaged records are left out; all files are read through to find them.

        Raises:
            UserError: there is no file, or something does not fit.
        """
        paths = _without_empty_files(files.expand(patterns, flag))
        found = manifest.of_files(paths)
        manifests = list({id(each): each for each, _ in found.values()}.values())
        for each in manifests:
            _check_manifest(each, flag, max_seq_length, max_predictions_per_seq, vocab_file)
        dynamic = {each.source["flags"].get("masking") == "dynamic" for each in manifests}
        if len(dynamic) > 1 or (dynamic == {True} and len(found) < len(paths)):
            raise UserError(f"--{flag}: some of the records have masks and others have none; give files of one kind")
        sizes = (config.vocab_size, config.type_vocab_size)
        masking = None
        if dynamic == {True}:
            masking = _masking(manifests, max_predictions_per_seq, vocab_file)
            schema = records.unmasked_schema(max_seq_length, *sizes)
        else:
            schema = records.pretraining_schema(max_seq_length, max_predictions_per_seq, *sizes)
        readable, damaged = records.readable(paths, schema) if skip_damaged else (None, 0)
        _check_first_records(paths, schema, skip_damaged)
        described = {path: shard for path, (_, shard) in found.items()}
        return cls(paths, schema, masking, readable, manifests, described, damaged)

    def training(self, batch_size: int, seed: int, skipped_records: int) -> tf.data.Dataset:
        """Returns endless batches: see input_pipeline.training_batches."""
        return training_batches(
            self.paths, batch_size, self.schema, seed, skipped_records, self._stretches(skipped_records), self.masking
        )

    def evaluation(self, batch_size: int) -> tf.data.Dataset:
        """Returns each record once: see input_pipeline.evaluation_batches."""
        return evaluation_batches(self.paths, batch_size, self.schema, self.readable, self.masking)

    def places(self, seed: int, skipped_records: int, number: int) -> str:
        """Returns where the records stand that `training` yields after the skipped ones, for a reader."""
        numbers: dict[str, list[int]] = {}
        for path, record in places(self.paths, seed, skipped_records, number, self._stretches(skipped_records)):
            numbers.setdefault(path, []).append(record)
        return "; ".join(
            f"{path}: {', '.join(map(str, sorted(found)[:_MOST_NAMED]))}{' ...' * (len(found) > _MOST_NAMED)}"
            for path, found in sorted(numbers.items())
        )

    def identity(self) -> list[dict[str, Any]]:
        """Returns what tells these files from others: name, length in bytes and, where a manifest has it, checksum."""
        return [
            {
                "file": os.path.basename(path),
                "bytes": files.size(path),
                "sha256": self.described[path].sha256 if path in self.described else None,
            }
            for path in self.paths
        ]

    @property
    def fingerprint(self) -> int:
        """A number that other files would hardly have."""
        return zlib.crc32(json.dumps(self.identity(), sort_keys=True).encode())

    def _stretches(self, skipped_records: int) -> list[list[tuple[int, int]]] | None:
        # Numbers of records are needed to start within the data alone; the manifest has them without reading.
        if self.readable is not None or not skipped_records:
            return self.readable
        counts = [
            self.described[path].records if path in self.described else records.count(path) for path in self.paths
        ]
        return [[(0, count)] for count in counts]


_MOST_NAMED = 20


def _without_empty_files(paths: list[str]) -> list[str]:
    empty = [path for path in paths if not files.size(path)]
    if len(empty) == len(paths):
        raise UserError(f"there is no record in {', '.join(paths)}; make some with data_gen.create_pretraining_data")
    if empty:
        print(f"warning: left out, since they are empty: {', '.join(empty)}")
    return [path for path in paths if path not in empty]


def _check_manifest(
    found: manifest.Manifest, flag: str, max_seq_length: int, max_predictions_per_seq: int, vocab_file: str | None
) -> None:
    flags = found.source["flags"]
    prefix = "phase2_" if flag.startswith("phase2_") else ""
    given = {"max_seq_length": max_seq_length, "max_predictions_per_seq": max_predictions_per_seq}
    for name, value in given.items():
        if flags.get(name, value) != value:
            raise UserError(
                f"--{prefix}{name} is {value}, but the manifest says that the records of --{flag} were made with "
                f"{flags[name]}; give that"
            )
    if vocab_file and manifest.sha256(vocab_file) != found.source["vocabulary"]:
        raise UserError(
            f"{vocab_file} is not the vocabulary that the records of --{flag} were made with (their manifest has "
            "another hash of it); give that one"
        )


def _masking(manifests: list[manifest.Manifest], limit: int, vocab_file: str | None) -> DynamicMasking:
    if not vocab_file:
        raise UserError(
            "the records are without masks, which are made while training: that needs their vocabulary; give it as "
            "--vocab_file"
        )
    laws = {(each.source["flags"]["masked_lm_prob"], each.source["flags"]["do_whole_word_mask"]) for each in manifests}
    if len(laws) > 1:
        raise UserError(
            f"the records were made with several values of masked_lm_prob and do_whole_word_mask: {sorted(laws)}; "
            "give records of one kind"
        )
    return DynamicMasking(load_vocab(vocab_file), limit, *next(iter(laws)))


def _check_first_records(paths: list[str], schema: records.Schema, damaged_are_left_out: bool) -> None:
    for path in paths[:_FILES_CHECKED]:
        try:
            sample = list(itertools.islice(records.read_file(path), _RECORDS_CHECKED))
        except UserError as error:
            if damaged_are_left_out:
                continue
            raise UserError(f"{error}; --on_corrupt_record=skip leaves damaged records out") from error
        if not sample:
            raise UserError(f"{path} holds no record; make it again with data_gen.create_pretraining_data")
        problems = {number: records.mismatch(record, schema) for number, record in enumerate(sample)}
        wrong = {number: problem for number, problem in problems.items() if problem}
        if not wrong or (damaged_are_left_out and len(wrong) < len(sample)):
            continue
        number, problem = next(iter(wrong.items()))
        if "masked_lm_ids" in schema and _is_unmasked(sample[number], schema):
            raise UserError(
                f"{path} was written without masks (--masking=dynamic), which its manifest tells; that must lie beside "
                f"it: copy the *.manifest.json of its run to {os.path.dirname(path) or '.'}"
            )
        raise UserError(
            f"{path}: record {number} (from 0): {problem}; --max_seq_length, --max_predictions_per_seq and "
            "--bert_config_file must be those that the records were made with"
        )


def _is_unmasked(record: bytes, schema: records.Schema) -> bool:
    if records.mismatch(record, records.unmasked_schema(*schema["input_ids"].shape)):
        return False
    return not any(name.startswith("masked_lm_") for name in tf.train.Example.FromString(record).features.feature)
