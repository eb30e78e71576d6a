"""Splits the text into training and held-out documents, mixes in general text, and makes records (second stage)."""

import dataclasses
import hashlib
import itertools
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, NamedTuple

from data_gen.options import RecordOptions
from data_gen.pipelines import one_machine
from data_gen.text import exclusion, formats
from data_gen.text.exclusion import DocumentFilter, ExcludedTexts
from official_bert.adaptation.options import AUTO, PAIRS, AdaptationOptions
from official_bert.checkpoints.checkpoint import TOKENIZER_FILE, VOCAB_FILE
from official_bert.checkpoints.model_files import find_tokenizer
from official_bert.data.sentence_objectives import NEXT_SENTENCE, NONE
from official_bert.errors import UserError
from official_bert.tokenization.casing import UNCASED
from official_bert.utils import files, row_files
from official_bert.utils.counting import pluralize

# The folder of texts and its files, with one sentence per line and an empty line after each document.
TEXTS = "texts"
DOMAIN, HELDOUT, GENERAL, GENERAL_HELDOUT = "domain.txt", "heldout.txt", "general.txt", "general_heldout.txt"
_FACTS_FILE = "texts.json"
RECORDS = "records"

_MAX_HELDOUT_CHARACTERS = 2_000_000  # More than an evaluation reads.
_MAX_PASSES = 10  # The default of make-records.
_HELDOUT_PASSES = 3  # So that a small text has enough predictions.
# Options of adapt that make-records has with the same meaning.
_SHARED_OPTIONS = (
    "max_seq_length max_predictions_per_seq masked_lm_prob do_whole_word_mask word_boundaries random_seed".split()
)


@dataclasses.dataclass(frozen=True)
class Texts:
    """The sizes of the texts that `prepare_texts` wrote. The domain is the text to adapt to, --input_file.

    Attributes:
        characters: Number of characters of the domain's training text, without line breaks.
        heldout_characters: Number of characters of the held-out text "domain" and, with --general_file, "general".
        general_share: Share of general text in the whole training text, from 0 to 1.
        pairs: Whether records contain pairs of segments, so that next-sentence prediction is trained.
    """

    characters: int
    heldout_characters: dict[str, int]
    general_share: float
    pairs: bool


class _Document(NamedTuple):
    """A document within a file that contains all documents: its digest, position and size."""

    corpus: IO[bytes]
    digest: bytes
    start: int
    end: int
    characters: int
    sentences: int

    def read(self) -> bytes:
        self.corpus.seek(self.start)
        return self.corpus.read(self.end - self.start)


def prepare_texts(options: AdaptationOptions, folder: str) -> Texts:
    """Reads the texts of --input_file and --general_file, and writes training and held-out text to a folder.

    Which documents are held out depends only on their contents. So the decision is the same for equal documents.

    Raises:
        UserError: If the text cannot be read or is too short, or --general_file and --input_file are the same text.
    """
    paths = row_files.expand(options.input_file, "input_file")
    general_paths = row_files.expand(options.general_file, "general_file") if options.general_file else []
    for path, other in itertools.product(general_paths, paths):
        if files.is_same_file(path, other):
            raise UserError(
                f"--general_file and --input_file are the same file ({path}, {other}); pass other general text"
            )
    _, excluded = exclusion.load_described(options.exclude_texts)
    with tempfile.TemporaryFile(dir=folder) as corpus:
        documents = _read_documents("reading text", paths, options, excluded, corpus)
        held, kept = _hold_out(documents, options.heldout_share)
        if not held or not kept:
            sentences = pluralize(sum(each.sentences for each in documents), "sentence")
            raise UserError(f"--input_file contains {sentences}, too few to hold some out; pass more text")
        _write(held, os.path.join(folder, HELDOUT))
        _write(kept, os.path.join(folder, DOMAIN))
    print(f"domain: {_describe(kept)} to train on, {_describe(held)} held out", flush=True)
    pairs = options.objective == PAIRS
    if options.objective == AUTO:
        pairs = 2 * _sum_characters(each for each in documents if each.sentences > 1) >= _sum_characters(documents)
        if not pairs:
            print("most documents have only one sentence: using --objective=mlm (masked tokens only)")
    characters, heldout_characters = _sum_characters(kept), {"domain": _sum_characters(held)}
    mixed: list[_Document] = []
    if general_paths:
        with tempfile.TemporaryFile(dir=folder) as corpus:
            general = _read_documents("reading general text", general_paths, options, excluded, corpus)
            held_general, mixed = _split_general(options, general, {each.digest for each in documents}, characters)
            _write(held_general, os.path.join(folder, GENERAL_HELDOUT))
            heldout_characters["general"] = _sum_characters(held_general)
            if mixed:
                _write(mixed, os.path.join(folder, GENERAL))
    general_share = _sum_characters(mixed) / (_sum_characters(mixed) + characters)
    texts = Texts(characters, heldout_characters, general_share, pairs)
    files.write_text(os.path.join(folder, _FACTS_FILE), json.dumps(dataclasses.asdict(texts)))
    return texts


def read_texts(work: str) -> Texts:
    """Returns the sizes of the texts in the working folder, as `prepare_texts` returned them."""
    return Texts(**files.read_json_object(os.path.join(work, TEXTS, _FACTS_FILE)))


def read_sentences(path: str) -> Iterator[str]:
    """Yields the sentences of a file that `prepare_texts` wrote."""
    with open(path, encoding="utf-8") as reader:
        yield from filter(None, (line.rstrip("\n") for line in reader))


def make_records(options: AdaptationOptions, work: str, model: str, passes: int) -> dict[str, list[str]]:
    """Makes training and evaluation records. Resumes if an earlier call was interrupted.

    Returns the paths of the files, by the names of the options of pretrain.

    Args:
        options: The options of adapt.
        work: The working folder, with the texts and models.
        model: Name of the model in the working folder whose vocabulary is used: INITIAL or ORIGINAL.
        passes: How often the training text is used. 0 makes no training records.

    Raises:
        UserError: As for the command make-records.
    """
    folder, model_folder = os.path.join(work, RECORDS, model), os.path.join(work, model)
    texts = read_texts(work)
    casing = find_tokenizer(model_folder).casing or UNCASED
    files.make_folder(folder)

    def make(name: str, names: list[str], dupe_factor: int) -> list[str]:
        output = [os.path.join(folder, f"{name}.tfrecord")]
        one_machine.create_pretraining_data(
            RecordOptions(
                input_file=[os.path.join(work, TEXTS, each) for each in names],
                output_file=output,
                vocab_file=os.path.join(model_folder, VOCAB_FILE),
                dupe_factor=dupe_factor,
                sentence_objective=NEXT_SENTENCE if texts.pairs else NONE,
                input_format="sentences",
                do_lower_case=casing.do_lower_case,
                strip_accents=casing.strip_accents,
                added_tokens_file=os.path.join(model_folder, TOKENIZER_FILE) if casing.added_tokens else None,
                **{option: getattr(options, option) for option in _SHARED_OPTIONS},
            )
        )
        return output

    training_texts = [DOMAIN, *([GENERAL] if texts.general_share else [])]
    heldout = make("heldout", [HELDOUT], _HELDOUT_PASSES)
    has_general = "general" in texts.heldout_characters
    return {
        "input_file": make("train", training_texts, passes) if passes else heldout,
        "eval_input_file": heldout,
        "general_eval_file": make("general", [GENERAL_HELDOUT], _HELDOUT_PASSES) if has_general else [],
    }


def count_passes(options: AdaptationOptions, tokens: float, general_share: float) -> int:
    """Returns how often the training text is used for records: --dupe_factor, or as often as training needs.

    Args:
        options: The options of adapt.
        tokens: Number of tokens of the domain's training text.
        general_share: Share of general text in the whole training text.
    """
    if options.dupe_factor is not None:
        return options.dupe_factor
    wanted = options.num_train_steps * options.train_batch_size * (options.max_seq_length - 3)
    return max(1, min(_MAX_PASSES, math.ceil(wanted * (1 - general_share) / max(tokens, 1.0))))


def _split_general(
    options: AdaptationOptions, documents: list[_Document], domain: set[bytes], characters: int
) -> tuple[list[_Document], list[_Document]]:
    """Splits the general text into documents to hold out and documents to mix into the training text.

    Documents that are also in the domain's text are left out.

    Args:
        options: The options of adapt.
        documents: All documents of the general text.
        domain: Digests of all documents of the domain.
        characters: Number of characters of the domain's training text.
    """
    general = [each for each in documents if each.digest not in domain]
    shared = len(documents) - len(general)
    if 2 * len(general) <= len(documents):
        raise UserError(
            f"{shared:,} of the {pluralize(len(documents), 'document')} of --general_file are also in the domain's "
            "text; pass other general text"
        )
    if shared:
        print(f"left out of the general text because they are also in --input_file: {pluralize(shared, 'document')}")
    share = options.general_share
    held, kept = _hold_out(general, options.heldout_share if share else 1.0)
    if not held or (share and not kept):
        raise UserError("--general_file contains too little text to hold some out; pass more text")
    wanted = characters * share / (1 - share)
    ends = itertools.accumulate(document.characters for document in kept)
    mixed = [each for each, end in zip(kept, ends, strict=True) if end - each.characters < wanted]
    taken = _sum_characters(mixed)
    percent = 100 * taken / (taken + characters)
    print(f"general: {_describe(mixed)} mixed in ({percent:.0f} %), {_describe(held)} held out", flush=True)
    if taken < 0.9 * wanted:
        print(f"warning: --general_file has too little text for --general_share={share}; all of it is used")
    return held, mixed


def _read_documents(
    title: str, paths: list[str], options: AdaptationOptions, excluded: ExcludedTexts | None, corpus: IO[bytes]
) -> list[_Document]:
    """Copies the documents in some files to `corpus`, except documents that contain an excluded text.

    Returns:
        The documents, with their positions in `corpus`.
    """
    documents = []
    document_filter = DocumentFilter(excluded)
    for document in document_filter(formats.read_files(title, paths, options)):
        content = "".join(f"{sentence}\n" for sentence in document).encode()
        digest, start = hashlib.blake2b(content, digest_size=8).digest(), corpus.tell()
        corpus.write(content)
        documents.append(_Document(corpus, digest, start, corpus.tell(), sum(map(len, document)), len(document)))
    if excluded:
        print(f"left out because of --exclude_texts: {pluralize(document_filter.left_out, 'document')}")
    return documents


def _hold_out(documents: list[_Document], share: float) -> tuple[list[_Document], list[_Document]]:
    """Chooses documents that together are about `share` of the text. Returns these and the others, sorted by digest.

    If every document, with its copies, is longer than that, only the last sentences of the longest document are held
    out. They are also left out of its copies.
    """
    budget = min(share * _sum_characters(documents), _MAX_HELDOUT_CHARACTERS)
    held: list[_Document] = []
    kept: list[_Document] = []
    for _, group in itertools.groupby(sorted(documents, key=lambda each: each.digest), lambda each: each.digest):
        equal = list(group)
        fits = _sum_characters(equal) <= budget
        budget -= _sum_characters(equal) if fits else 0
        (held if fits else kept).extend(equal)
    if held or not kept:
        return held, kept
    longest, shortest = (choose(kept, key=lambda each: each.characters) for choose in (max, min))
    chosen = shortest if longest.sentences == 1 else longest
    others = [each for each in kept if each.digest != chosen.digest]
    copies = [each for each in kept if each.digest == chosen.digest]
    if longest.sentences == 1:
        return (copies, others) if others else ([], kept)
    print(
        f"every document, with its copies, is longer than {100 * share:g} % of the text: holding out the end of the "
        "longest one"
    )
    first, last = _split_document(longest, budget / len(copies))
    return [last], others + [first] * len(copies)


def _split_document(document: _Document, budget: float) -> tuple[_Document, _Document]:
    """Splits a document before its last sentences, which have about `budget` characters. Returns both parts."""
    lines = document.read().splitlines(keepends=True)
    lengths = [len(line.decode()) - 1 for line in lines]
    number = 1
    while number < len(lines) - 1 and sum(lengths[-number:]) < budget:
        number += 1
    middle = document.end - sum(map(len, lines[-number:]))
    first, last = sum(lengths[:-number]), sum(lengths[-number:])
    return (
        document._replace(end=middle, characters=first, sentences=len(lines) - number),
        document._replace(start=middle, characters=last, sentences=number),
    )


def _write(documents: Iterable[_Document], path: str) -> None:
    with open(path, "wb") as writer:
        writer.writelines(document.read() + b"\n" for document in documents)


def _sum_characters(documents: Iterable[_Document]) -> int:
    return sum(each.characters for each in documents)


def _describe(documents: list[_Document]) -> str:
    return f"{pluralize(len(documents), 'document')} of {_sum_characters(documents):,} characters"
