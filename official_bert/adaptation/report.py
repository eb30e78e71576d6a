"""What an adaptation leaves for its reader: adapt.json, and tables for the model card."""

import dataclasses
import json
import os
import random
from collections.abc import Mapping, Sequence

from official_bert.adaptation import texts
from official_bert.adaptation.texts import Texts
from official_bert.checkpoints.loading import load_pretraining_model
from official_bert.inference.fill_mask import fill_mask
from official_bert.tokenization.exact import MASK, FullTokenizer
from official_bert.utils import files

RESULT_FILE = "adapt.json"

Table = list[list[str]]  # rows of cells; the first row is the head

_SAMPLES, _SHORTEST, _LONGEST = 8, 6, 25  # sentences with a mask, and their words
_MOST_WORDS_SHOWN = 100


@dataclasses.dataclass(frozen=True)
class Change:
    """A figure before the first step, and of the adapted model."""

    before: float
    after: float


@dataclasses.dataclass(frozen=True)
class Adaptation:
    """What an adaptation gained and what it forgot; adapt.json holds the same.

    Attributes:
        domain: masked-LM losses (nats a prediction) on what was held out of the text.
        general: the same on general text; None where none was given.
        tokens_per_word: what the tokenizer makes of the words held out, before and with the new words.
        new_words: those that were added to the vocabulary.
    """

    domain: Change
    general: Change | None
    tokens_per_word: Change
    new_words: list[str]

    def write(self, folder: str) -> None:
        """Writes adapt.json into a folder."""
        text = json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False)
        files.write_text(os.path.join(folder, RESULT_FILE), text + "\n")

    @classmethod
    def read(cls, folder: str) -> "Adaptation":
        """Reads the adapt.json of a folder."""
        held = files.read_json_object(os.path.join(folder, RESULT_FILE))
        general = held["general"] and Change(**held["general"])
        return cls(Change(**held["domain"]), general, Change(**held["tokens_per_word"]), held["new_words"])

    def __str__(self) -> str:
        lines = [f"domain   {_described(self.domain, 'gained')}"]
        if self.general:
            lines.append(f"general  {_described(self.general, 'forgotten')}")
        pieces = self.tokens_per_word
        lines.append(
            f"tokens   {pieces.before:.3f} a word before, {pieces.after:.3f} after, {len(self.new_words):,} words added"
        )
        return "\n".join(lines)


def _described(change: Change, what: str) -> str:
    difference = change.before - change.after if what == "gained" else change.after - change.before
    return f"masked LM loss {change.before:.4f} before, {change.after:.4f} after: {difference:+.4f} {what}"


def sections(
    result: Adaptation,
    facts: Texts,
    words: Mapping[str, float],
    original_losses: Mapping[str, float],
    samples: Sequence[tuple[str, str, str, str]],
) -> dict[str, Table]:
    """Returns the tables by title.

    Args:
        result: what came out.
        facts: of the text.
        words: how many words of each held-out text there are, and tokens a word before and after; see adapting.
        original_losses: of the model with its own vocabulary, where words were added: see training.losses.
        samples: as of `filled_masks`.
    """
    losses = [["held-out text", "characters", "before", "after", "a character before", "a character after"]]
    for name, change, characters in (
        ("heldout", result.domain, facts.heldout_characters),
        ("general", result.general, facts.general_heldout_characters),
    ):
        if change:
            before, after = (words[f"{name}_{when}"] / characters for when in ("before", "after"))  # tokens a character
            first = original_losses.get(name, change.before)
            losses.append(
                ["the domain" if name == "heldout" else "general", f"{characters:,}", f"{change.before:.4f}",
                 f"{change.after:.4f}", f"{first * before:.4f}", f"{change.after * after:.4f}"]
            )  # fmt: skip
    tables = {"Masked-LM losses, in nats: of a prediction, and of the text by character": losses}
    pieces = result.tokens_per_word
    tables["Tokens a word"] = [["before", "after"], [f"{pieces.before:.3f}", f"{pieces.after:.3f}"]]
    if result.new_words:
        shown = ", ".join(result.new_words[:_MOST_WORDS_SHOWN])
        left = len(result.new_words) - _MOST_WORDS_SHOWN
        more = f" and {left:,} more" if left > 0 else ""
        tables["New words"] = [["number", "words"], [f"{len(result.new_words):,}", shown + more]]
    tables["Masks filled in"] = [["sentence", "hidden", "before", "after"], *map(list, samples)]
    return tables


def filled_masks(heldout_file: str, before: str, after: str, seed: int) -> list[tuple[str, str, str, str]]:
    """Returns sentences with a masked word, that word, and the best candidates of two models of one vocabulary.

    Args:
        heldout_file: of texts.
        before: folder of the first model.
        after: folder of the other one.
        seed: of the choice.
    """
    rows: list[list[str]] = []
    for folder in (before, after):
        model, config, tokenizer = load_pretraining_model(folder)
        rows = rows or [list(each) for each in _masked_sentences(heldout_file, tokenizer, seed)]
        for row in rows:
            (candidates,) = fill_mask(model, tokenizer, config, row[0], top_k=3)
            row.append(", ".join(f"{each.token} {100 * each.probability:.0f} %" for each in candidates))
    return [(sentence, word, first, second) for sentence, word, first, second in rows]


def _masked_sentences(path: str, tokenizer: FullTokenizer, seed: int) -> list[tuple[str, str]]:
    """Sentences of usual length with a mask in place of a word that is a piece, and that word."""
    rng = random.Random(seed)
    found = []
    for sentence in texts.sentences(path):
        words = tokenizer.basic_tokenizer.tokenize(sentence)
        places = [number for number, word in enumerate(words) if word.isalpha() and word in tokenizer.vocab]
        if _SHORTEST <= len(words) <= _LONGEST and places and "[" not in sentence:
            place = rng.choice(places)
            found.append((" ".join([*words[:place], MASK, *words[place + 1 :]]), words[place]))
    return rng.sample(found, min(_SAMPLES, len(found)))
