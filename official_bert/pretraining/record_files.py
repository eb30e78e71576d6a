"""The record files of a run: finds them, checks them against manifest, vocabulary and model, and reads batches."""

import contextlib
import dataclasses
import itertools
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from official_bert.checkpoints.vocabulary import split_vocab
from official_bert.data import manifest, record_damage, record_reader, record_schema
from official_bert.data.dynamic_masking import DynamicMasking
from official_bert.data.input_pipeline import RecordSource
from official_bert.data.masking_rates import BERT_RATES, MaskingRates
from official_bert.data.next_token_targets import add_next_token_targets
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.pretraining.options import Phase, PretrainingOptions
from official_bert.tokenization.casing import Casing
from official_bert.tokenization.exact import load_vocab
from official_bert.utils import files
from official_bert.utils.counting import join_first

# Files and records of each file that are checked before the first step. Others are checked when they are read.
_FILES_CHECKED, _RECORDS_CHECKED = 16, 100
_MAX_RECORDS_SHOWN = 20  # of each file, in messages
_MAX_FILES_SHOWN = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordFiles(RecordSource):
    """Record files that were checked to fit each other and the model.

    Records without masks are masked while they are read. If the model predicts next tokens, targets are made instead.

    Attributes:
        manifests: The manifests of the files.
        shards: The manifest's entry of each file that has one.
        damaged: Number of skipped records that cannot be read.
    """

    manifests: list[manifest.Manifest]
    shards: dict[str, manifest.Shard]
    damaged: int = 0

    @classmethod
    def find(cls, flag: str, phase: Phase, options: PretrainingOptions, config: BertConfig) -> "RecordFiles":
        """Finds the record files that match the patterns of a flag, and checks them.

        Args:
            flag: Name of the flag with the file names or glob patterns, without dashes.
            phase: The phase with the expected sizes of the records.
            options: The options of the run. With --on_corrupt_record=skip, all files are read to find damaged records.
            config: Configuration of the model.

        Raises:
            UserError: If no file matches, or the files contradict each other or the other arguments.
        """
        patterns = getattr(options, flag)
        all_paths = files.expand(patterns, flag)
        read = manifest.read_manifests(all_paths)
        for path, manifest_file in manifest.find_missing_files(patterns, all_paths, read).items():
            raise UserError(
                f"--{flag}: {path} is missing, but {manifest_file} lists it. Restore it from a copy or by running "
                "make-records again, or pass the names of the files to use instead of a pattern."
            )
        # Files that TensorFlow cannot read remotely are copied to this machine.
        here = {path: files.local_copy(path) for path in all_paths}
        described = {here[path]: found for path, found in manifest.find_shards(all_paths, read).items()}
        shards = {path: shard for path, (_, shard) in described.items()}
        paths = _remove_empty_files([here[path] for path in all_paths], shards)
        # Records in several folders have a manifest in each folder, with the same source.
        manifests: list[manifest.Manifest] = []
        for each, _ in described.values():
            if all(each.source != other.source for other in manifests):
                manifests.append(each)
        for each in manifests:
            _check_manifest(each, flag, phase, options.vocab_file)
        _check_casing(manifests, flag, options)
        dynamic = {each.source["flags"].get("masking") == "dynamic" for each in manifests}
        if len(dynamic) > 1 or (dynamic == {True} and not set(paths) <= described.keys()):
            raise UserError(f"--{flag}: only some of the records have masks. Pass files of one kind.")
        # A vocabulary may have fewer tokens than the model.
        vocab = files.read_text(options.vocab_file) if options.vocab_file else None
        num_tokens = config.vocab_size if vocab is None else min(config.vocab_size, len(split_vocab(vocab)))
        sizes = (num_tokens, config.type_vocab_size)
        masking = None if config.predicts_masked_tokens else add_next_token_targets
        if dynamic == {True}:
            masking = masking or _make_masking(manifests, phase.max_predictions_per_seq, options.vocab_file).mask
            schema = record_schema.unmasked_schema(phase.max_seq_length, *sizes)
        else:
            schema = record_schema.pretraining_schema(phase.max_seq_length, phase.max_predictions_per_seq, *sizes)
        skip_damaged = options.on_corrupt_record == "skip"
        readable, damaged = record_damage.find_readable_ranges(paths, schema) if skip_damaged else (None, 0)
        _check_first_records(paths, schema, skip_damaged)
        return cls(
            paths=paths,
            schema=schema,
            masking=masking,
            readable=readable,
            manifests=manifests,
            shards=shards,
            compression=_detect_compression(paths, described),
            damaged=damaged,
        )

    def describe_locations(self, seed: int, skipped_records: int, number: int) -> str:
        """Describes where some records of the training data are, as text: their files and indices.

        Args:
            seed: Random seed of the order.
            skipped_records: Number of records that are read before them.
            number: Number of records to describe.
        """
        numbers: dict[str, list[int]] = {}
        for path, record in self.locate_records(seed, skipped_records, number):
            numbers.setdefault(path, []).append(record)
        locations = []
        for path, records in sorted(numbers.items()):
            shown = ", ".join(map(str, sorted(records)[:_MAX_RECORDS_SHOWN]))
            locations.append(f"{path}: {shown}{' ...' * (len(records) > _MAX_RECORDS_SHOWN)}")
        return "; ".join(locations)

    @contextlib.contextmanager
    def explain_damage(self) -> Iterator[None]:
        """A context that converts TensorFlow's error about a damaged record to a UserError with file and record."""
        try:
            yield
        except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
            damage = record_damage.describe_first_damage(self.paths, self.schema)
            if damage is None:
                raise
            raise UserError(
                f"{damage}. Earlier checkpoints are intact. --on_corrupt_record=skip leaves damaged records out."
            ) from error

    def identity(self) -> list[dict[str, Any]]:
        """Returns the name, the size and, if the manifest states it, the SHA-256 of each file, for comparisons."""
        return [
            {"file": os.path.basename(path), "bytes": _get_size(path, shard), "sha256": shard.sha256 if shard else None}
            for path, shard in ((path, self.shards.get(path)) for path in self.paths)
        ]

    @property
    def flags(self) -> list[dict[str, Any]]:
        """The flags of make-records in each manifest. Without a manifest, one empty dict."""
        return [each.source["flags"] for each in self.manifests] or [{}]

    @property
    def num_records(self) -> int | None:
        """Number of readable records according to the manifests, or None if a file has no manifest."""
        return sum(map(self.count_records, self.paths)) if set(self.paths) <= self.shards.keys() else None

    @property
    def fingerprint(self) -> int:
        """A checksum of `identity`, to detect whether the files have changed."""
        return zlib.crc32(json.dumps(self.identity(), sort_keys=True).encode())

    def count_records(self, path: str) -> int:
        """Returns the number of readable records in one of the files, from its manifest if it has one."""
        if self.readable:
            return sum(number for _, number in self.readable[self.paths.index(path)])
        shard = self.shards.get(path)
        return shard.records if shard else super().count_records(path)


def _get_size(path: str, shard: manifest.Shard | None) -> int:
    return shard.bytes if shard else files.size(path)


def _remove_empty_files(paths: list[str], shards: Mapping[str, manifest.Shard]) -> list[str]:
    empty = {path: None for path in paths if not _get_size(path, shards.get(path))}
    named = join_first(list(empty), _MAX_FILES_SHOWN)
    if len(empty) == len(set(paths)):
        raise UserError(f"{named}: no records. Write records with official-bert make-records.")
    if empty:
        print(f"warning: skipped empty files: {named}")
    return [path for path in paths if path not in empty]


def _detect_compression(paths: list[str], described: Mapping[str, tuple[manifest.Manifest, manifest.Shard]]) -> str:
    """Returns the compression of all files. Opens only one of the files that share a manifest."""
    opened: dict[int | str, str] = {}
    for path in paths:
        opened.setdefault(id(described[path][0]) if path in described else path, path)
    return record_reader.get_compression(list(opened.values()))


def _check_manifest(described: manifest.Manifest, flag: str, phase: Phase, vocab_file: str | None) -> None:
    flags = described.source["flags"]
    for name in ("max_seq_length", "max_predictions_per_seq"):
        value = getattr(phase, name)
        if flags.get(name, value) != value:
            raise UserError(
                f"{phase.flag(name)} is {value}, but the records of --{flag} were made with {flags[name]}, according "
                "to their manifest. Pass that value."
            )
    if vocab_file and manifest.hash_vocabulary(files.read_text(vocab_file)) != described.source["vocabulary"]:
        raise UserError(
            f"{vocab_file} is not the vocabulary of the records of --{flag} (the hash in their manifest differs). Pass "
            "the vocabulary that they were made with."
        )


def read_recorded_casing(described: manifest.Manifest) -> Casing | None:
    """Returns the casing of the text that records were made from, or None if the manifest does not state it."""
    flags = described.source["flags"]
    return None if flags.get("do_lower_case") is None else Casing.from_settings(flags)


def _check_casing(manifests: list[manifest.Manifest], flag: str, options: PretrainingOptions) -> None:
    recorded = sorted({casing for each in manifests if (casing := read_recorded_casing(each))})
    if len(recorded) > 1:
        kinds = " and others are ".join(casing.texts for casing in recorded)
        raise UserError(f"--{flag}: some of the records are {kinds}. Pass files of one kind.")
    for name in ("do_lower_case", "strip_accents"):
        value = getattr(options, name)
        if recorded and value not in (None, getattr(recorded[0], name)):
            raise UserError(
                f"--{'' if value else 'no'}{name} contradicts the manifest of the records of --{flag}: their text is "
                f"{recorded[0].texts}. Remove the flag."
            )


def get_masking_rates(flags: dict[str, Any]) -> str:
    """Returns the rates of the replacements of predicted tokens (see MaskingRates.parse) in the flags of records."""
    return str(flags.get("masking_rates", BERT_RATES))


def _make_masking(manifests: list[manifest.Manifest], limit: int, vocab_file: str | None) -> DynamicMasking:
    if not vocab_file:
        raise UserError(
            "The records have no masks, and masking them during training needs their vocabulary. Pass --vocab_file."
        )
    names = ("masked_lm_prob", "do_whole_word_mask")
    settings = {
        (*(each.source["flags"][name] for name in names), get_masking_rates(each.source["flags"])) for each in manifests
    }
    if len(settings) > 1:
        raise UserError(
            f"The records were made with different values of {', '.join(names)} and masking_rates: {sorted(settings)}. "
            "Pass records of one kind."
        )
    probability, whole_words, rates = next(iter(settings))
    return DynamicMasking(load_vocab(vocab_file), limit, probability, whole_words, MaskingRates.parse(rates))


def _check_first_records(paths: list[str], schema: record_schema.Schema, skip_damaged: bool) -> None:
    for path in paths[:_FILES_CHECKED]:
        try:
            sample = list(itertools.islice(record_reader.read_file(path), _RECORDS_CHECKED))
        except UserError as error:
            record_reader.check_is_tfrecord(path)
            if skip_damaged:
                continue
            raise UserError(f"{error}. --on_corrupt_record=skip leaves damaged records out.") from error
        if not sample:
            raise UserError(f"{path} contains no records. Write it again with official-bert make-records.")
        problems = {number: record_damage.describe_mismatch(record, schema) for number, record in enumerate(sample)}
        wrong = {number: problem for number, problem in problems.items() if problem}
        if not wrong or (skip_damaged and len(wrong) < len(sample)):
            continue
        number, problem = next(iter(wrong.items()))
        if "masked_lm_ids" in schema and _is_unmasked(sample[number], schema):
            raise UserError(
                f"{path} was written without masks (make-records --masking=dynamic), so its manifest is needed. Copy "
                f"the *.manifest.json of its run to {os.path.dirname(path) or '.'}."
            )
        raise UserError(
            f"{path}: record {number} (from 0): {problem}. Pass the --max_seq_length, --max_predictions_per_seq, "
            "--vocab_file and --bert_config_file that the records were made with."
        )


def _is_unmasked(record: bytes, schema: record_schema.Schema) -> bool:
    if record_damage.describe_mismatch(record, record_schema.unmasked_schema(*schema["input_ids"].shape)):
        return False
    return not any(name.startswith("masked_lm_") for name in tf.train.Example.FromString(record).features.feature)
