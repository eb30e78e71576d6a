"""The KindSpec of tagging: a tag for each word, such as named entities or parts of speech (paper, section 5.3).

As in the paper, the label of a word is at its first token. The other tokens, [CLS] and [SEP] have no label.

A sentence that is too long for the model is split into overlapping windows between words. In training and in
prediction, a word counts once, in the window where it has the most context.

T tokens of all windows, S sequence length, C tags
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from official_bert.errors import UserError
from official_bert.kinds import class_labels, input_adapters
from official_bert.kinds.features import EXAMPLE, LABELS, NO_LABEL, Features, Outputs, check_length, concatenate_rows
from official_bert.kinds.names import TAGGING
from official_bert.kinds.probabilities import compute_margins, softmax
from official_bert.kinds.spec import KindSpec, Outcome
from official_bert.kinds.tagging import entity_scores
from official_bert.tokenization import pairs, truncation
from official_bert.tokenization.exact import CLS, CONTINUATION, SEP, UNK, FullTokenizer

_WORD = "word"  # in Features.details, [T]: the index of the word that is tagged at this token, or -1

Tagged = tuple[list[str], list[float]]


class Span(NamedTuple):
    """An entity, text[start:end] in characters, with its type as `label`, which is empty if entities have no types.

    For tags that mark no entities (such as parts of speech), a span is a word and its tag. The probability, 0 to 1, is
    the lowest of the words.
    """

    text: str
    label: str
    start: int
    end: int
    probability: float


@dataclasses.dataclass(frozen=True)
class Sentence:
    """The words of a sentence, their tags (None if unknown), and the number of its line or row in the file, from 1.

    If the words were split from a text, `starts` and `ends` are the character positions of each word in `text`.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    line: int
    # Excluded from the repr, whose digest identifies the data of a run: training does not depend on them.
    text: str | None = dataclasses.field(default=None, repr=False)
    starts: tuple[int, ...] = dataclasses.field(default=(), repr=False)
    ends: tuple[int, ...] = dataclasses.field(default=(), repr=False)


class Window(NamedTuple):
    """The words that are tagged in one row of the features, which contains a sentence or a window of a long sentence.

    Attributes:
        sentence: Index of the sentence.
        words: Indices of the words in the sentence.
        positions: Position of each word's first token in the row.
    """

    sentence: int
    words: list[int]
    positions: list[int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingSpec(KindSpec):
    """The KindSpec of tagging (paper, section 5.3). A prediction is the tags of a sentence and their probabilities.

    The main score is the F1 of entities if the tags mark entities (see entity_scores), else the accuracy of the tags.

    Attributes:
        labels: The tags, in the order of the logits.
        doc_stride: Approximate number of tokens between the starts of two windows of a long sentence. Defaults to half
            a window.
    """

    kind: ClassVar[str] = TAGGING
    decoding: ClassVar[str] = (
        "Apply softmax to the logits of the first token of each word. The tag is the most probable label. A word "
        "in several windows is read in the one that shows the most context around it."
    )
    required_settings: ClassVar[tuple[str, ...]] = ("labels",)
    has_tokens: ClassVar[bool] = True
    reads_windows: ClassVar[bool] = True
    discrete_outputs: ClassVar[tuple[str, ...]] = ("tags",)
    answer_dtypes: ClassVar[Mapping[str, Any]] = {
        "words": object,
        "tags": object,
        "starts": np.int32,
        "ends": np.int32,
        "probabilities": np.float32,
    }

    labels: tuple[str, ...] = ()
    doc_stride: int | None = None

    @property
    def scheme(self) -> entity_scores.Scheme | None:
        """The tagging scheme of the labels, such as BIOES, or None if they do not mark entities."""
        return entity_scores.detect_scheme(self.labels)

    @property
    def score_names(self) -> tuple[str, ...]:
        return ("f1", "precision", "recall", "accuracy") if self.scheme else ("accuracy",)

    @property
    def has_own_scores(self) -> bool:
        return bool(self.scheme)

    def make_examples(self, x: Any, y: Any) -> list[Sentence]:
        rows = input_adapters.to_list(x)
        tag_rows = [None] * len(rows) if y is None else input_adapters.to_list(y, "y")
        input_adapters.check_same_length(len(rows), tag_rows, "y")
        sentences = []
        for number, (row, tag_row) in enumerate(zip(rows, tag_rows, strict=True)):
            words = tuple(_split_at_spaces(row, f"x[{number}]", input_adapters.to_texts))
            tags = None
            if y is not None:
                names = _split_at_spaces(tag_row, f"y[{number}]", input_adapters.to_list)
                if len(names) != len(words):
                    raise UserError(f"x[{number}] has {len(words)} words and y[{number}] {len(names)} tags")
                numbers = class_labels.class_numbers(names, self.labels, f"y[{number}]")
                tags = tuple(self.labels[tag] for tag in numbers)
            sentences.append(Sentence(words, tags, number + 1))
        return sentences

    def spans(self, predictions: Sequence[Tagged], examples: Sequence[Sentence]) -> list[list[Span]]:
        """Converts predicted tags to the entities of each text, or to tagged words if the tags are not of entities.

        Args:
            predictions: The tags and probabilities of each text.
            examples: The texts as Sentences with character positions (see `split_text` and `join_words`).
        """
        scheme = self.scheme
        return [
            [
                Span(
                    text=(sentence.text or "")[sentence.starts[first] : sentence.ends[last]],
                    label=label,
                    start=sentence.starts[first],
                    end=sentence.ends[last],
                    probability=min(certainties[first : last + 1]),
                )
                for label, first, last in (
                    entity_scores.entities(tags, scheme)
                    if scheme
                    else [(tag, number, number) for number, tag in enumerate(tags)]
                )
            ]
            for (tags, certainties), sentence in zip(predictions, examples, strict=True)
        ]

    def make_prediction_examples(self, texts: Mapping[str, Sequence[Any]], tokenizer: FullTokenizer) -> list[Sentence]:
        return [
            split_text(text, tokenizer, line) for line, text in enumerate(input_adapters.to_texts(texts["text"]), 1)
        ]

    def collect_texts(self, examples: Sequence[Sentence]) -> dict[str, list[Any]]:
        return {"text": [" ".join(example.words) if example.text is None else example.text for example in examples]}

    def named_answers(self, predictions: Sequence[Tagged], examples: Sequence[Sentence]) -> dict[str, list[Any]]:
        return {
            "words": [list(example.words) for example in examples],
            "tags": [tags for tags, _ in predictions],
            "starts": [list(example.starts) for example in examples],
            "ends": [list(example.ends) for example in examples],
            "probabilities": [probabilities for _, probabilities in predictions],
        }

    def margins(self, outputs: Outputs, features: Features, examples: Sequence[Sentence]) -> list[float]:
        margins = [math.inf] * len(examples)
        for window, logits in zip(list_windows(features), outputs, strict=True):
            rows = softmax(logits[window.positions].astype(np.float64))
            margins[window.sentence] = min([margins[window.sentence], *compute_margins(rows)])
        return margins

    def featurize(self, examples: Sequence[Sentence], tokenizer: FullTokenizer, max_seq_length: int) -> Features:
        """Splits sentences into windows of whole words, and returns the model's inputs for all windows in order.

        Each window is [CLS] tokens of whole words [SEP]. They have targets only if all sentences have tags. The target
        of a tag that is not in `labels` is NO_LABEL.

        Args:
            examples: The sentences.
            tokenizer: Splits words into tokens. A word without tokens (a control character) becomes [UNK]. A word with
                more tokens than a window is truncated.
            max_seq_length: Maximum number of tokens of a window, including [CLS] and [SEP].

        Raises:
            UserError: If max_seq_length leaves no room for a word.
        """
        check_length(max_seq_length, 3)
        room = max_seq_length - 2
        cls, sep, unk = tokenizer.convert_tokens_to_ids([CLS, SEP, UNK])
        numbers = {label: number for number, label in enumerate(self.labels)}
        known: dict[str, list[int]] = {}
        rows, indices, is_truncated = [], [], []
        marks = [np.zeros((2, 0), np.int32)]  # the index of the word that is tagged at each token, and its tag
        for number, sentence in enumerate(examples):
            for word in set(sentence.words) - known.keys():
                known[word] = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(word)) or [unk]
            is_truncated.append(any(len(known[word]) > room for word in sentence.words))
            pieces = [known[word][:room] for word in sentence.words]
            tokens = np.cumsum([0, *map(len, pieces)])  # the first token of each word, and the end
            starts = tokens.tolist()
            spans = truncation.build_word_windows(starts, room, self.doc_stride or max(room // 2, 1))
            window_starts, ends = tokens[np.transpose(spans)]
            owners = truncation.assign_tokens(window_starts, ends - window_starts, starts[-1])
            for index, (first, last) in enumerate(spans):
                ids = pairs.join(cls, sep, list(itertools.chain.from_iterable(pieces[first:last])))[0]
                marks.append(np.full((2, len(ids)), NO_LABEL, np.int32))
                for place in range(first, last):
                    if owners[starts[place]] == index:
                        tag = numbers.get(sentence.tags[place], NO_LABEL) if sentence.tags else NO_LABEL
                        marks[-1][:, 1 + starts[place] - starts[first]] = place, tag
                rows.append(np.array(ids, np.int32))
                indices.append(number)
        words, tags = np.concatenate(marks, axis=1)
        are_known = all(sentence.tags is not None for sentence in examples)
        return concatenate_rows(
            rows,
            [np.zeros_like(ids) for ids in rows],
            {LABELS: tags} if are_known else {},
            {EXAMPLE: np.array(indices, np.int64), _WORD: words},
            is_truncated=is_truncated,
            has_token_outputs=True,
        )

    def describe_truncation(self, num_truncated: int, num_examples: int, max_seq_length: int) -> str | None:
        if not num_truncated:
            return None
        return (
            f"{num_truncated:,} of {num_examples:,} texts have a word of more than {max_seq_length - 2} tokens, whose "
            "rest was left out (max_seq_length)"
        )

    def decode(self, outputs: Outputs, features: Features, examples: Sequence[Sentence]) -> list[Tagged]:
        tagged: list[Tagged] = [([""] * len(each.words), [0.0] * len(each.words)) for each in examples]
        for window, logits in zip(list_windows(features), outputs, strict=True):
            tags, probabilities = tagged[window.sentence]
            for word, row in zip(window.words, softmax(logits[window.positions].astype(np.float64)), strict=True):
                best = int(np.argmax(row))
                tags[word], probabilities[word] = self.labels[best], float(row[best])
        return tagged

    def scores(self, predictions: Sequence[Tagged], examples: Sequence[Sentence]) -> dict[str, float]:
        expected, predicted = [each.tags or () for each in examples], [tags for tags, _ in predictions]
        if scheme := self.scheme:
            return entity_scores.score(expected, predicted, scheme)
        return {"accuracy": entity_scores.accuracy(expected, predicted)}

    def outcomes(self, predictions: Sequence[Tagged], examples: Sequence[Sentence]) -> list[Outcome]:
        return [
            Outcome(
                text=" ".join(sentence.words),
                expected=" ".join(sentence.tags or ()),
                predicted=" ".join(tags),
                correct=list(sentence.tags or ()) == tags,
                certainty=min(certainties, default=None),
            )
            for sentence, (tags, certainties) in zip(examples, predictions, strict=True)
        ]


def _split_at_spaces(row: Any, name: str, to_elements: Callable[[Any, str], list[Any]]) -> list[Any]:
    """Splits a text at white space. Returns the elements of any other row, such as a list of words."""
    return input_adapters.to_text(row, name).split() if isinstance(row, str | bytes) else to_elements(row, name)


def split_text(text: str, tokenizer: FullTokenizer, line: int = 1) -> Sentence:
    """Splits a text into words at white space, with punctuation and ideographs as separate words, as exports do.

    Args:
        text: The text.
        tokenizer: The model's tokenizer.
        line: The number of the line in the file, from 1.

    Returns:
        A Sentence without tags.
    """
    pieces = tokenizer.tokenize_with_offsets(text)
    first = [number for number, piece in enumerate(pieces) if not piece.token.startswith(CONTINUATION)]
    starts = tuple(pieces[number].start for number in first)
    ends = tuple(pieces[number - 1].end for number in [*first[1:], len(pieces)][: len(first)])
    words = tuple(text[start:end] for start, end in zip(starts, ends, strict=True))
    return Sentence(words, None, line, text, starts, ends)


def join_words(sentence: Sentence) -> Sentence:
    """Returns the sentence with its words joined by spaces as `text`, and with their character positions in it."""
    lengths = [len(word) for word in sentence.words]
    starts = tuple(itertools.accumulate((length + 1 for length in lengths), initial=0))[:-1]
    ends = tuple(start + length for start, length in zip(starts, lengths, strict=True))
    return dataclasses.replace(sentence, text=" ".join(sentence.words), starts=starts, ends=ends)


def list_windows(features: Features) -> list[Window]:
    """Returns the words that are tagged in each row of the result of `featurize`."""
    windows = []
    for row, (first, last) in enumerate(itertools.pairwise(features.splits.tolist())):
        words = features.details[_WORD][first:last]
        positions = np.flatnonzero(words >= 0)
        windows.append(Window(int(features.details[EXAMPLE][row]), words[positions].tolist(), positions.tolist()))
    return windows
