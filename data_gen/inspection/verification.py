"""Checks record files against their manifest, vocabulary and model, and each record against the rules of records."""

import concurrent.futures
import dataclasses
import functools
import glob
import os
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import tensorflow as tf

from data_gen.inspection import batches, validation
from data_gen.options import VerificationOptions
from official_bert.data import manifest, record_reader, record_schema
from official_bert.data.manifest import Manifest, Shard
from official_bert.data.sentence_objectives import NONE, objective_of
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.tokenization import exact
from official_bert.tokenization.casing import describe_contradiction
from official_bert.utils import files
from official_bert.utils.counting import pluralize

# `validation.first_violation` of batches of a run's records.
_Check = Callable[[batches.Batch], tuple[int, str] | None]

# Small files are checked in groups of about so many bytes, and at most so many files: reading a file alone costs more
# than its records.
_GROUP_BYTES, _GROUP_FILES = 4 << 20, 1000

# A file, and the manifest's entry of it.
_Entry = tuple[str, Shard | None]


@dataclasses.dataclass
class Findings:
    """The result of a verification: what was checked is right, except for the problems."""

    files: int = 0  # record files read
    records: int = 0  # records in them, as far as they could be read
    problems: list[str] = dataclasses.field(default_factory=list)  # what is wrong, each with the file it is in
    checked: list[str] = dataclasses.field(default_factory=list)  # what was compared with what
    notes: list[str] = dataclasses.field(default_factory=list)  # what was not checked, and what that would need


@dataclasses.dataclass(frozen=True)
class _FileSet:
    """Files of one run: with their entries in the manifest at `manifest_file`, or files without a manifest."""

    manifest_file: str | None
    source: Manifest | None
    entries: Mapping[str, Shard | None]


def verify(options: VerificationOptions) -> Findings:
    """Reads all the files and describes the first bad record of each.

    Raises:
        UserError: there is nothing to be checked, or a manifest, the vocabulary or the configuration cannot be read.
    """
    findings = Findings()
    vocab, config = None, None
    if options.vocab_file:
        vocab = exact.load_vocab(options.vocab_file)
        exact.check_special_tokens(vocab, options.vocab_file)
    if options.bert_config_file:
        config = BertConfig.from_json_file(options.bert_config_file)
    if options.manifest:
        sets = [_set_of_manifest(options.manifest, findings)]
    else:
        sets = _sets_of_files(files.expand(options.input_file, "input_file"), findings)
    _check_model(options, vocab, config, findings)
    # Files that a manifest describes are read twice, for their hash too.
    read = [path for each in sets for path, shard in each.entries.items() for _ in range(2 if shard else 1)]
    progress = record_reader.reading_progress("verifying", read)
    for each in sets:
        _check_set(each, options, vocab, config, progress, findings)
    return findings


def _set_of_manifest(path: str, findings: Findings) -> _FileSet:
    contents = Manifest.read(path)
    folder = os.path.dirname(path)
    listed = {os.path.join(folder, shard.file): shard for shard in contents.shards}
    # A question for each file would cost more in a far folder.
    present = set(files.glob(os.path.join(glob.escape(folder), "*")))
    missing = {each for each in listed if each not in present and not files.exists(each)}
    findings.problems.extend(f"{each} is missing; {path} names it" for each in listed if each in missing)
    stem = glob.escape(path.removesuffix(manifest.manifest_path("")))
    number = "[0-9]" * 5
    for ending in dict.fromkeys(os.path.splitext(each)[1] for each in listed):
        for left_over in [*files.glob(stem + ending), *files.glob(f"{stem}-{number}-of-{number}{ending}")]:
            if left_over not in listed:
                findings.problems.append(
                    f"{left_over} is not named in {path}: left over from another run? Remove it, or a pattern may "
                    "match it too"
                )
    return _FileSet(path, contents, {each: shard for each, shard in listed.items() if each not in missing})


def _sets_of_files(paths: list[str], findings: Findings) -> list[_FileSet]:
    # As os.path.join makes them of a folder and a manifest's names.
    paths = list(map(files.normalize_path, paths))
    by_folder: dict[str, dict[str, None]] = {}
    for path in paths:
        by_folder.setdefault(os.path.dirname(path), {})[path] = None
    sets = []
    for folder, unlisted in by_folder.items():
        described = _described_sets(folder, unlisted, findings)
        sets += described
        if not described:
            findings.notes.append(f"no manifest in {folder or '.'} names the files, to compare them with")
            sets.append(_FileSet(None, None, unlisted))
            continue
        findings.problems.extend(
            f"{path} is not named in any manifest beside it, as other files are: left over from another run? Remove "
            "it, or do not give it"
            for path in unlisted
        )
    return sets


def _described_sets(folder: str, unlisted: dict[str, None], findings: Findings) -> list[_FileSet]:
    """The sets that the folder's manifests name, as far as they are in `unlisted`; they are removed from it."""
    sets = []
    for manifest_file in manifest.beside(folder):
        contents = Manifest.read(manifest_file)
        listed = {os.path.join(folder, shard.file): shard for shard in contents.shards}
        requested = {path: shard for path, shard in listed.items() if path in unlisted}
        if not requested:
            continue
        sets.append(_FileSet(manifest_file, contents, requested))
        for path in requested:
            del unlisted[path]
        others = [path for path in listed if path not in requested]
        findings.problems.extend(
            f"{path} is missing; {manifest_file} names it" for path in others if not files.exists(path)
        )
        there = [path for path in others if files.exists(path)]
        if there:
            findings.notes.append(
                f"not checked, since --input_file does not name them: {len(there)} more files of {manifest_file}, the "
                f"first {there[0]}"
            )
    return sets


def _check_model(
    options: VerificationOptions, vocab: Mapping[str, int] | None, config: BertConfig | None, findings: Findings
) -> None:
    if vocab is None:
        findings.notes.append("[CLS], [SEP] and which ids there are were not checked; give --vocab_file")
    if config is None:
        findings.notes.append("whether a model can read the records was not checked; give --bert_config_file")
        return
    if config.type_vocab_size < 2:
        findings.problems.append(f"{options.bert_config_file} has type_vocab_size 1, but records have two segments")
    if vocab is not None and _ids(vocab) > config.vocab_size:
        findings.problems.append(
            f"{options.vocab_file} has {_ids(vocab)} tokens, but {options.bert_config_file} has vocab_size "
            f"{config.vocab_size}; they must belong together"
        )
    findings.checked.append(
        f"vocab_size, max_position_embeddings and type_vocab_size of {options.bert_config_file} suffice"
    )


def _ids(vocab: Mapping[str, int]) -> int:
    return max(vocab.values()) + 1


def _check_set(
    file_set: _FileSet,
    options: VerificationOptions,
    vocab: Mapping[str, int] | None,
    config: BertConfig | None,
    advance: Callable[[int], None],
    findings: Findings,
) -> None:
    max_seq_length, max_predictions_per_seq = _lengths(file_set)
    if file_set.source and options.vocab_file:
        expected, actual = file_set.source.source.get("vocabulary"), manifest.sha256(options.vocab_file)
        if actual != expected:
            findings.problems.append(
                f"{options.vocab_file} is not the vocabulary that the records were made with: its sha256 is {actual}, "
                f"{file_set.manifest_file} says {expected}; the records were checked without it"
            )
            vocab = None
    limits = [*([_ids(vocab)] if vocab else []), *([config.vocab_size] if config else [])]
    limit = min(limits, default=None)
    if not file_set.entries:
        return
    try:
        schema = batches.schema_of(list(file_set.entries), limit, max_seq_length, max_predictions_per_seq)
    except UserError as error:
        findings.problems.append(str(error))
        return
    (length,) = schema["input_ids"].shape
    if config and length > config.max_position_embeddings:
        findings.problems.append(
            f"the records have {length} positions, but {options.bert_config_file} has max_position_embeddings "
            f"{config.max_position_embeddings}"
        )
    read = 0
    flags = file_set.source.source["flags"] if file_set.source else {}
    pieces = validation.WordPieces(vocab) if vocab else None
    check = functools.partial(validation.first_violation, word_pieces=pieces, one_segment=objective_of(flags) == NONE)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        check_group = functools.partial(_check_group, schema=schema, check=check, advance=advance)
        for of_group in threads.map(check_group, _groups(file_set.entries)):
            for count, problem in of_group:
                read += count
                if problem:
                    findings.problems.append(problem)
    if pieces and read:
        recorded = flags.get("do_lower_case")
        # Without a manifest, only the pieces show whether text was lower-cased, and some text has no capital letters.
        lower = not pieces.has_seen_capitals if recorded is None else recorded
        problem = describe_contradiction(pieces.vocab, lower, str(options.vocab_file), "make the records again with")
        if problem and recorded is None:
            findings.notes.append(f"the text seems to be lower-cased, but {problem}, unless it has no capital letters")
        elif problem:
            findings.problems.append(problem)
    findings.files += len(file_set.entries)
    findings.records += read
    findings.checked += _describe_checks(file_set, schema, read, vocab, limit)


def _lengths(file_set: _FileSet) -> tuple[int | None, int | None]:
    """The manifest's max_seq_length and max_predictions_per_seq, or None where there is no manifest."""
    if file_set.source is None:
        return None, None
    try:
        flags = file_set.source.source["flags"]
        return int(flags["max_seq_length"]), int(flags["max_predictions_per_seq"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{file_set.manifest_file} does not tell the flags max_seq_length and max_predictions_per_seq; restore it "
            "from a copy, or remove it to check the files without"
        ) from error


def _groups(entries: Mapping[str, Shard | None]) -> Iterator[list[_Entry]]:
    """Yields the files in order, small ones together."""
    group: list[_Entry] = []
    size = 0
    for path, shard in entries.items():
        group.append((path, shard))
        size += shard.bytes if shard else files.size(path)
        if size > _GROUP_BYTES or len(group) == _GROUP_FILES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _check_group(
    group: list[_Entry], schema: record_schema.Schema, check: _Check, advance: Callable[[int], None]
) -> list[tuple[int, str | None]]:
    """Returns of each file how many records could be read, and what is wrong with it, if anything."""
    if len(group) == 1:
        return [_check_file(*group[0], schema, check, advance)]
    counts = _good_counts(group, schema, check)
    if counts is not None:
        advance(sum(2 * shard.bytes if shard else files.size(path) for path, shard in group))
        return [(count, None) for count in counts]
    half = len(group) // 2
    return [each for part in (group[:half], group[half:]) for each in _check_group(part, schema, check, advance)]


def _good_counts(group: list[_Entry], schema: record_schema.Schema, check: _Check) -> list[int] | None:
    """Returns how many records each file holds, or None if there is something wrong with any."""
    counts = np.zeros(len(group), np.int64)
    try:
        for numbers, batch in batches.read_together([path for path, _ in group], schema):
            if check(batch):
                return None
            counts += np.bincount(numbers, minlength=len(group))
        for (path, shard), count in zip(group, counts.tolist(), strict=True):
            if shard and (files.size(path), count, manifest.sha256(path)) != (shard.bytes, shard.records, shard.sha256):
                return None
    except (UserError, OSError, tf.errors.OpError):
        return None
    return counts.tolist()


def _check_file(
    path: str, shard: Shard | None, schema: record_schema.Schema, check: _Check, advance: Callable[[int], None]
) -> tuple[int, str | None]:
    """Returns how many records could be read, and what is wrong with the file, if anything."""
    count, problem = _check_records(path, schema, check, advance)
    if shard is None:
        return count, problem
    size = files.size(path)
    if size != shard.bytes:
        length = f"{path} has {size:,} bytes; the manifest says {shard.bytes:,}"
        return count, f"{length}; {problem}" if problem else length
    if problem:
        return count, problem
    if count != shard.records:
        return count, f"{path} has {count:,} records; the manifest says {shard.records:,}"
    digest = manifest.sha256(path, advance)
    if digest != shard.sha256:
        return count, (
            f"{path}: all records are good, but they are not those of the manifest: sha256 {digest}, expected "
            f"{shard.sha256}; {record_reader.REPAIR_HINT}"
        )
    return count, None


def _check_records(
    path: str, schema: record_schema.Schema, check: _Check, advance: Callable[[int], None]
) -> tuple[int, str | None]:
    count = 0
    try:
        for batch in batches.read_batches(path, schema, advance):
            if violation := check(batch):
                row, words = violation
                return count + row, f"{path}: record {count + row} (from 0): {words}"
            count += len(batch["input_ids"])
    except UserError as error:
        return count, str(error)
    return count, None


def _describe_checks(
    file_set: _FileSet, schema: record_schema.Schema, count: int, vocab: Mapping[str, int] | None, limit: int | None
) -> list[str]:
    (length,) = schema["input_ids"].shape
    about = "not masked: masking happens during training"
    rules = ["checksum, features and their sizes", "padding", "segments"]
    if "masked_lm_positions" in schema:
        about = f"up to {schema['masked_lm_positions'].shape[0]} predictions each"
        rules.append("predictions")
    if vocab:
        rules.append("[CLS], [SEP] and the pieces of words")
    if limit:
        rules.append(f"ids below {limit:,}")
    checked = [f"{pluralize(count, 'record')} of {length} positions, {about}: {', '.join(rules)}"]
    if file_set.manifest_file:
        hashes = "lengths, numbers of records and sha256" + (" and the vocabulary's" if vocab else "")
        checked.append(f"{pluralize(len(file_set.entries), 'file')}: {hashes} as in {file_set.manifest_file}")
    return checked
