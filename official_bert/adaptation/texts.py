"""The text of an adaptation: read once, a part of it held out by document, general text mixed in."""

import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator

from data_gen.text import exclusion, formats
from data_gen.text.exclusion import DocumentFilter, ExcludedTexts
from official_bert.adaptation.options import AUTO, PAIRS, Options
from official_bert.errors import UserError
from official_bert.utils import files, row_files
from official_bert.utils.counting import counted

# The files in the folder of texts: a sentence a line, an empty line after each document.
DOMAIN, HELDOUT, GENERAL, GENERAL_HELDOUT = "domain.txt", "heldout.txt", "general.txt", "general_heldout.txt"
_FACTS = "texts.json"

_MOST_HELD_OUT = 2_000_000  # characters: more than is evaluated


@dataclasses.dataclass(frozen=True)
class Texts:
    """What there is in a folder of texts.

    Attributes:
        characters: how many of the domain are trained on.
        heldout_characters: how many are held out of it, line breaks not counted.
        general_heldout_characters: likewise of general text; 0 where none was given.
        general_share: the share of general text in what is trained on.
        pairs: whether the records are to have pairs of sentences.
    """

    characters: int
    heldout_characters: int
    general_heldout_characters: int
    general_share: float
    pairs: bool


@dataclasses.dataclass(frozen=True)
class _Document:
    """A document in a file of documents: where it stands there, and what it is chosen by."""

    digest: bytes
    start: int
    end: int
    characters: int
    sentences: int


def prepare(options: Options, folder: str) -> Texts:
    """Reads the text and writes what is trained on and what is held out into a folder.

    Which documents are held out depends on their contents alone, so that equal ones are on one side.

    Raises:
        UserError: the text cannot be read or is too short, or the general text is that of the domain.
    """
    domain_paths = row_files.expand(options.input_file, "input_file")
    general_paths = row_files.expand(options.general_file, "general_file") if options.general_file else []
    for path, other in itertools.product(general_paths, domain_paths):
        if files.is_same_file(path, other):
            raise UserError(
                f"--general_file names {path}, text of the domain (--input_file names {other}); give other text"
            )
    whole = os.path.join(folder, "all.txt")
    _, excluded = exclusion.load_described(options.exclude_texts)
    documents = _gather("reading text", domain_paths, options, excluded, whole)
    held, kept = _hold_out(documents, options.heldout_share, whole)
    if not held or not kept:
        raise UserError(
            f"--input_file holds {counted(sum(each.sentences for each in documents), 'sentence')}: that is too little "
            "to hold some out; give more text"
        )
    _copy(whole, held, os.path.join(folder, HELDOUT))
    _copy(whole, kept, os.path.join(folder, DOMAIN))
    characters = _characters(kept)
    print(f"domain: {_described(kept)} to train on, {_described(held)} held out", flush=True)
    several = _characters(each for each in documents if each.sentences > 1)
    pairs = options.objective == PAIRS
    if options.objective == AUTO:
        pairs = 2 * several >= _characters(documents)
        if not pairs:
            print("most of the text is not in documents of several sentences: --objective=mlm, masked tokens alone")
    general_held, general_share = 0, 0.0
    if general_paths:
        own = {each.digest for each in documents}
        general_held, general_share = _prepare_general(options, general_paths, excluded, own, characters, folder, whole)
    os.remove(whole)
    texts = Texts(characters, _characters(held), general_held, general_share, pairs)
    files.write_text(os.path.join(folder, _FACTS), json.dumps(dataclasses.asdict(texts)))
    return texts


def read(folder: str) -> Texts:
    """Returns what `prepare` returned for the folder."""
    return Texts(**files.read_json_object(os.path.join(folder, _FACTS)))


def sentences(path: str) -> Iterator[str]:
    """Yields the sentences of a file that `prepare` wrote."""
    with open(path, encoding="utf-8") as reader:
        yield from filter(None, (line.rstrip("\n") for line in reader))


def _prepare_general(
    options: Options,
    paths: list[str],
    excluded: ExcludedTexts | None,
    own: set[bytes],
    characters: int,
    folder: str,
    whole: str,
) -> tuple[int, float]:
    """Writes general text held out and, if wanted, to mix in; returns the first's length and the other's share."""
    documents = _gather("reading general text", paths, options, excluded, whole)
    others = [each for each in documents if each.digest not in own]
    if 2 * len(others) <= len(documents):
        raise UserError(
            f"{len(documents) - len(others):,} of the {counted(len(documents), 'document')} of --general_file are in "
            "the domain's text too; give other text"
        )
    if len(others) < len(documents):
        print(
            f"left out of the general text, as the domain has them: {counted(len(documents) - len(others), 'document')}"
        )
    mixed = bool(options.general_share)
    held, kept = _hold_out(others, options.heldout_share if mixed else 1.0, whole)
    if not held or (mixed and not kept):
        raise UserError("--general_file holds too little text to hold some out; give more text")
    wanted = characters * options.general_share / (1 - options.general_share)
    ends = itertools.accumulate(document.characters for document in kept)
    chosen = [each for each, end in zip(kept, ends, strict=True) if end - each.characters < wanted]
    _copy(whole, held, os.path.join(folder, GENERAL_HELDOUT))
    share = _characters(chosen) / (_characters(chosen) + characters)
    if chosen:
        _copy(whole, chosen, os.path.join(folder, GENERAL))
    print(f"general: {_described(chosen)} mixed in ({100 * share:.0f} %), {_described(held)} held out", flush=True)
    if _characters(chosen) < 0.9 * wanted:
        print(f"warning: that is all there is; --general_share={options.general_share} would take more text")
    return _characters(held), share


def _gather(
    what: str, paths: list[str], options: Options, excluded: ExcludedTexts | None, path: str
) -> list[_Document]:
    """Writes the documents of files to one, without lines between them, and returns where each is.

    Those that hold an excluded text are left out, and counted.
    """
    documents = []
    kept = DocumentFilter(excluded)
    with open(path, "wb") as writer:
        for document in kept(formats.read_files(what, paths, options)):
            content = "".join(f"{sentence}\n" for sentence in document).encode()
            start = writer.tell()
            writer.write(content)
            digest = hashlib.blake2b(content, digest_size=8).digest()
            documents.append(_Document(digest, start, writer.tell(), sum(map(len, document)), len(document)))
    if excluded:
        print(f"left out, as they hold a text of --exclude_texts: {counted(kept.left_out, 'document')}")
    return documents


def _hold_out(documents: list[_Document], share: float, path: str) -> tuple[list[_Document], list[_Document]]:
    """Returns the documents that are held out and the others, both in an order of chance.

    Of text whose every document is longer than the share, the last sentences of the longest document are held out.
    """
    total = _characters(documents)
    budget = min(share * total, _MOST_HELD_OUT)
    held: list[_Document] = []
    kept: list[_Document] = []
    for _, same in itertools.groupby(sorted(documents, key=lambda each: each.digest), lambda each: each.digest):
        group = list(same)
        fits = _characters(group) <= budget
        budget -= _characters(group) if fits else 0
        (held if fits else kept).extend(group)
    if held or not kept:
        return held, kept
    longest, shortest = (choose(kept, key=lambda each: each.characters) for choose in (max, min))
    if longest.sentences == 1:
        return ([shortest], [each for each in kept if each is not shortest]) if len(kept) > 1 else ([], kept)
    print(f"every document is longer than {100 * share:g} % of the text: the end of the longest is held out")
    first, last = _cut(longest, budget, path)
    return [last], [*(each for each in kept if each is not longest), first]


def _cut(document: _Document, budget: float, path: str) -> tuple[_Document, _Document]:
    """Cuts a document of several sentences before its last ones, of about so many characters, one at least."""
    with open(path, "rb") as reader:
        reader.seek(document.start)
        lines = reader.read(document.end - document.start).splitlines(keepends=True)
    lengths = [len(line.decode()) - 1 for line in lines]
    number = 1
    while number < len(lines) - 1 and sum(lengths[-number:]) < budget:
        number += 1
    middle = document.end - sum(map(len, lines[-number:]))
    first, last = sum(lengths[:-number]), sum(lengths[-number:])
    return (
        dataclasses.replace(document, end=middle, characters=first, sentences=len(lines) - number),
        dataclasses.replace(document, start=middle, characters=last, sentences=number),
    )


def _copy(source: str, documents: Iterable[_Document], target: str) -> None:
    with open(source, "rb") as reader, open(target, "wb") as writer:
        for document in documents:
            reader.seek(document.start)
            writer.write(reader.read(document.end - document.start))
            writer.write(b"\n")


def _characters(documents: Iterable[_Document]) -> int:
    return sum(each.characters for each in documents)


def _described(documents: list[_Document]) -> str:
    return f"{counted(len(documents), 'document')} of {_characters(documents):,} characters"
