"""Checks record files against their manifest, vocabulary and model configuration, and each record against all rules."""

import concurrent.futures
import dataclasses
import functools
import glob
import itertools
import os
from collections.abc import Callable, Mapping

from data_gen.inspection import batches, validation
from data_gen.options import VerificationOptions
from official_bert.data import manifest, record_reader, record_schema
from official_bert.data.manifest import Manifest, Shard
from official_bert.data.sentence_objectives import NONE, get_objective
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.tokenization import exact
from official_bert.tokenization.casing import describe_contradiction
from official_bert.utils import files
from official_bert.utils.counting import pluralize

_Check = Callable[[batches.Batch], tuple[int, str] | None]  # See validation.find_first_violation.


@dataclasses.dataclass
class Findings:
    """The result of a verification.

    Attributes:
        files: Number of record files read.
        records: Number of records that could be read.
        problems: Error messages, each with the name of a file.
        checked: Descriptions of the checks that were made.
        notes: Descriptions of the checks that were skipped, and how to enable them.
    """

    files: int = 0
    records: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)
    checked: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class _FileSet:
    """The record files that one manifest lists, or record files without a manifest.

    Attributes:
        manifest_file: Path of the manifest, or None.
        source: Contents of the manifest, or None.
        entries: The manifest's entry for each file, by path, or None if the files have no manifest.
    """

    manifest_file: str | None
    source: Manifest | None
    entries: Mapping[str, Shard | None]


def verify(options: VerificationOptions) -> Findings:
    """Runs verify-records: reads all files and checks them. For each file, it reports the first damaged record.

    Raises:
        UserError: If no file matches, or a manifest, the vocabulary or the configuration cannot be read.
    """
    findings = Findings()
    vocab, config = None, None
    if options.vocab_file:
        vocab = exact.load_vocab(options.vocab_file)
        exact.check_special_tokens(vocab, options.vocab_file)
    if options.bert_config_file:
        config = BertConfig.from_json_file(options.bert_config_file)
    if options.manifest:
        file_sets = [_read_file_set(options.manifest, findings)]
    else:
        file_sets = _find_file_sets(files.expand(options.input_file, "input_file"), findings)
    _check_model(options, vocab, config, findings)
    # Files with a manifest are read twice, the second time for their hash.
    paths = [path for each in file_sets for path, shard in each.entries.items() for _ in range(2 if shard else 1)]
    progress = record_reader.track_reading("verifying", paths)
    for each in file_sets:
        _check_file_set(each, options, vocab, config, progress, findings)
    return findings


def _read_file_set(path: str, findings: Findings) -> _FileSet:
    contents = Manifest.read(path)
    folder = os.path.dirname(path)
    listed = {os.path.join(folder, shard.file): shard for shard in contents.shards}
    # In a remote folder, listing all files is faster than a request per file.
    present = set(files.glob(os.path.join(glob.escape(folder), "*")))
    missing = {each for each in listed if each not in present and not files.exists(each)}
    findings.problems.extend(f"{each} is missing; {path} lists it" for each in listed if each in missing)
    stem = glob.escape(path.removesuffix(manifest.get_manifest_path("")))
    number = "[0-9]" * 5
    for ending in dict.fromkeys(os.path.splitext(each)[1] for each in listed):
        for found in [*files.glob(stem + ending), *files.glob(f"{stem}-{number}-of-{number}{ending}")]:
            if found not in listed:
                findings.problems.append(
                    f"{found} is not listed in {path}, so it may be from another run; remove it, because a pattern "
                    "may match it"
                )
    return _FileSet(path, contents, {each: shard for each, shard in listed.items() if each not in missing})


def _find_file_sets(paths: list[str], findings: Findings) -> list[_FileSet]:
    """Returns the files that each manifest lists, and the files of each folder without manifests."""
    requested = dict.fromkeys(map(files.normalize_path, paths))
    unlisted, file_sets = requested.copy(), []
    for manifest_file, contents in manifest.read_manifests(paths).items():
        folder = os.path.dirname(manifest_file)
        listed = {os.path.join(folder, shard.file): shard for shard in contents.shards}
        entries = {path: shard for path, shard in listed.items() if path in requested}
        if not entries:
            continue
        file_sets.append(_FileSet(manifest_file, contents, entries))
        others = {path: files.exists(path) for path in listed if path not in requested}
        findings.problems.extend(f"{path} is missing; {manifest_file} lists it" for path in others if not others[path])
        if unchecked := [path for path in others if others[path]]:
            findings.notes.append(
                f"not checked, because --input_file does not match them: {len(unchecked)} more files of "
                f"{manifest_file}, the first {unchecked[0]}"
            )
        for path in entries:
            unlisted.pop(path, None)
    described = {os.path.dirname(str(each.manifest_file)) for each in file_sets}
    for folder, group in itertools.groupby(sorted(unlisted), os.path.dirname):
        if folder in described:
            findings.problems.extend(
                f"{path} is not listed in any manifest of its folder, so it may be from another run; remove it, or do "
                "not pass it"
                for path in group
            )
        else:
            findings.notes.append(f"no manifest in {folder or '.'} lists the files, to compare them with")
            file_sets.append(_FileSet(None, None, dict.fromkeys(group)))
    return file_sets


def _check_model(
    options: VerificationOptions, vocab: Mapping[str, int] | None, config: BertConfig | None, findings: Findings
) -> None:
    if vocab is None:
        findings.notes.append("[CLS], [SEP] and the range of ids were not checked; pass --vocab_file")
    if config is None:
        findings.notes.append("whether a model can read the records was not checked; pass --bert_config_file")
        return
    if config.type_vocab_size < 2:
        findings.problems.append(f"{options.bert_config_file} has type_vocab_size 1, but records have two segments")
    if vocab is not None and _count_ids(vocab) > config.vocab_size:
        findings.problems.append(
            f"{options.vocab_file} has {_count_ids(vocab)} tokens, but {options.bert_config_file} has vocab_size "
            f"{config.vocab_size}; pass files of the same model"
        )
    findings.checked.append(
        f"vocab_size, max_position_embeddings and type_vocab_size of {options.bert_config_file} are large enough"
    )


def _count_ids(vocab: Mapping[str, int]) -> int:
    return max(vocab.values()) + 1


def _check_file_set(
    file_set: _FileSet,
    options: VerificationOptions,
    vocab: Mapping[str, int] | None,
    config: BertConfig | None,
    advance: Callable[[int], None],
    findings: Findings,
) -> None:
    flags = file_set.source.source["flags"] if file_set.source else {}
    if file_set.source and options.vocab_file:
        expected = file_set.source.source.get("vocabulary")
        actual = manifest.hash_vocabulary(files.read_text(options.vocab_file))
        if actual != expected:
            findings.problems.append(
                f"{options.vocab_file} is not the vocabulary that the records were made with: its sha256 is {actual}, "
                f"but {expected} in {file_set.manifest_file}; the records were checked without it"
            )
            vocab = None
    limits = [*([_count_ids(vocab)] if vocab else []), *([config.vocab_size] if config else [])]
    limit = min(limits, default=None)
    if not file_set.entries:
        return
    try:
        lengths = flags.get("max_seq_length"), flags.get("max_predictions_per_seq")
        schema = batches.infer_schema(list(file_set.entries), limit, *lengths)
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
    pieces = validation.WordPieces(vocab) if vocab else None
    check = functools.partial(
        validation.find_first_violation, word_pieces=pieces, one_segment=get_objective(flags) == NONE
    )
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        check_file = functools.partial(_check_file, schema=schema, check=check, advance=advance)
        for count, problem in threads.map(check_file, file_set.entries, file_set.entries.values()):
            read += count
            if problem:
                findings.problems.append(problem)
    if pieces and read:
        recorded = flags.get("do_lower_case")
        # Without a manifest, only the pieces show whether text was lower-cased, and some text has no capital letters.
        lower = not pieces.has_seen_capitals if recorded is None else recorded
        problem = describe_contradiction(pieces.vocab, lower, str(options.vocab_file), "make the records again with")
        if problem and recorded is None:
            findings.notes.append(
                f"the text may have been lower-cased, but {problem}, unless it has no capital letters"
            )
        elif problem:
            findings.problems.append(problem)
    findings.files += len(file_set.entries)
    findings.records += read
    findings.checked += _describe_checks(file_set, schema, read, vocab, limit)


def _check_file(
    path: str, shard: Shard | None, schema: record_schema.Schema, check: _Check, advance: Callable[[int], None]
) -> tuple[int, str | None]:
    """Checks a file. Returns the number of readable records, and an error message or None.

    The arguments are the same as for `_check_group`.
    """
    count, problem = _check_records(path, schema, check, advance)
    if shard is None:
        return count, problem
    size = files.size(path)
    if size != shard.bytes:
        length = f"{path} has {size:,} bytes; expected {shard.bytes:,} by its manifest"
        return count, f"{length}; {problem}" if problem else length
    if problem:
        return count, problem
    if count != shard.records:
        return count, f"{path} has {count:,} records; expected {shard.records:,} by its manifest"
    digest = files.sha256(path, advance)
    if digest != shard.sha256:
        return count, (
            f"{path}: all records are valid, but the file differs from its manifest: sha256 {digest}, expected "
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
                row, message = violation
                return count + row, f"{path}: record {count + row} (from 0): {message}"
            count += len(batch["input_ids"])
    except UserError as error:
        return count, str(error)
    return count, None


def _describe_checks(
    file_set: _FileSet, schema: record_schema.Schema, count: int, vocab: Mapping[str, int] | None, limit: int | None
) -> list[str]:
    (length,) = schema["input_ids"].shape
    masking = "not masked: masking happens during training"
    rules = ["checksum, features and their sizes", "padding", "segments"]
    if "masked_lm_positions" in schema:
        masking = f"up to {schema['masked_lm_positions'].shape[0]} predictions each"
        rules.append("predictions")
    if vocab:
        rules.append("[CLS], [SEP] and the pieces of words")
    if limit:
        rules.append(f"ids below {limit:,}")
    checked = [f"{pluralize(count, 'record')} of {length} positions, {masking}: {', '.join(rules)}"]
    if file_set.manifest_file:
        hashes = "sizes, numbers of records and sha256" + (" and the vocabulary's" if vocab else "")
        checked.append(f"{pluralize(len(file_set.entries), 'file')}: {hashes} as in {file_set.manifest_file}")
    return checked
