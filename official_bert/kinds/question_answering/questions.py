"""Questions about a context (the text that contains the answer), and the windows into which contexts are split.

An answer is a span of characters of the context. The character positions of each token are stored, so that answers and
token positions convert into each other exactly.

R windows, T tokens of all windows
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from official_bert.errors import UserError
from official_bert.kinds.features import EXAMPLE, Array, Features, concatenate_rows
from official_bert.tokenization import pairs, truncation
from official_bert.tokenization.exact import CLS, SEP, FullTokenizer
from official_bert.utils.progress import Progress

OUTPUTS = START_LOGITS, END_LOGITS = "start_logits", "end_logits"  # of the model
# In Features.details, for each token [T]: its characters in the context, and whether this window has the most context
# around it. 0 and False for tokens outside of the context.
_DETAILS: dict[str, Any] = {"starts": np.int32, "ends": np.int32, "has_most_context": bool}


@dataclasses.dataclass(frozen=True)
class Answer:
    """The text of an answer, and the position of its first character in the context."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True)
class Question:
    """A question, its context, and its correct answers if they are known."""

    id: str  # the key of its prediction
    text: str  # the question
    context: str  # the text that may contain the answer
    # The correct answers. Empty if the context has no answer, None if the answers are unknown.
    answers: tuple[Answer, ...] | None


@dataclasses.dataclass(frozen=True)
class Context:
    """A tokenized context. Token i has the characters text[starts[i]:ends[i]]."""

    text: str
    ids: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32]


class Window(NamedTuple):
    """The part of a context that one row of the features contains. Long contexts have several overlapping windows.

    Attributes:
        question: Index of the question.
        offset: Position of the first token of context in the row, after [CLS] question [SEP].
        starts: For each token of context in the window, the position of its first character in the context.
        ends: For each token of context in the window, the position after its last character.
        has_most_context: For each token of context in the window, whether no other window has more context around it.
    """

    question: int
    offset: int
    starts: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32]
    has_most_context: npt.NDArray[np.bool_]


def tokenize_context(text: str, tokenizer: FullTokenizer) -> Context:
    """Tokenizes a context, and keeps the character positions of each token."""
    pieces = tokenizer.tokenize_with_offsets(text)
    return Context(
        text,
        np.array(tokenizer.convert_tokens_to_ids(piece.token for piece in pieces), np.int32),
        np.array([piece.start for piece in pieces], np.int32),
        np.array([piece.end for piece in pieces], np.int32),
    )


def featurize(
    questions: Sequence[Question], tokenizer: FullTokenizer, max_seq_length: int, doc_stride: int, max_query_length: int
) -> Features:
    """Splits the context of each question into windows, and returns the model's inputs for all windows in order.

    Each window is [CLS] question [SEP] part of the context [SEP]. They have targets only if the answers of all
    questions are known. Consecutive questions with the same context tokenize it only once.

    The target of a window is the first and the last token of the answer. As in the original, it is [CLS] ("no answer")
    unless the window contains the whole answer. Unlike here, the original first finds the words of the answer, and
    shrinks this span while its text is equal to the answer's.

    Args:
        questions: The questions with their contexts.
        tokenizer: The model's tokenizer.
        max_seq_length: Maximum number of tokens of a window, with the question, [CLS] and two [SEP].
        doc_stride: Number of tokens of context between the starts of two windows.
        max_query_length: Maximum number of tokens of a question. Longer questions are truncated.

    Raises:
        UserError: If a value is too small, or if a question of maximum length leaves no room for context.
    """
    if max_query_length < 1 or doc_stride < 1:
        raise UserError(f"max_query_length is {max_query_length} and doc_stride {doc_stride}; expected 1 or more")
    if max_seq_length <= max_query_length + 3:
        raise UserError(
            f"max_seq_length={max_seq_length} leaves no room for context with a question of {max_query_length} "
            "tokens, [CLS] and two [SEP]; raise it or lower max_query_length"
        )
    cls, sep = tokenizer.convert_tokens_to_ids([CLS, SEP])
    rows, indices, answers, is_truncated = [], [], [], []
    details: dict[str, list[Array]] = {name: [np.zeros(0, dtype)] for name, dtype in _DETAILS.items()}
    context = None
    progress = Progress("featurizing", len(questions), "questions")
    for number, question in enumerate(questions):
        if context is None or context.text != question.context:
            context = tokenize_context(question.context, tokenizer)
        pieces = tokenizer.tokenize(question.text)
        is_truncated.append(len(pieces) > max_query_length)
        query = tokenizer.convert_tokens_to_ids(pieces[:max_query_length])
        offset, count = len(query) + 2, len(context.ids)
        room = max_seq_length - len(query) - 3
        _, starts, lengths = truncation.build_windows(np.array([count]), np.array([room]), doc_stride)
        owners = truncation.assign_tokens(starts, lengths, count)
        first, last = find_answer_tokens(question, context, tokenizer)
        for index, (start, end) in enumerate(zip(starts.tolist(), (starts + lengths).tolist(), strict=True)):
            rows.append(pairs.join(cls, sep, query, context.ids[start:end].tolist()))
            indices.append(number)
            shift = offset - start
            answers.append((first + shift, last + shift) if start <= first <= last < end else (0, 0))
            values = (context.starts[start:end], context.ends[start:end], owners[start:end] == index)
            for name, array in zip(details, values, strict=True):
                details[name].append(np.pad(array, (offset, 1)))
        progress.update(number + 1)
    positions = np.array(answers, np.int32).reshape(-1, 2)
    are_known = all(question.answers is not None for question in questions)
    return concatenate_rows(
        [np.array(ids, np.int32) for ids, _ in rows],
        [np.array(segment_ids, np.int32) for _, segment_ids in rows],
        {START_LOGITS: positions[:, 0], END_LOGITS: positions[:, 1]} if are_known else {},
        {EXAMPLE: np.array(indices, np.int64), **{name: np.concatenate(arrays) for name, arrays in details.items()}},
        is_truncated=is_truncated,
        has_token_outputs=True,
    )


def find_answer_tokens(question: Question, context: Context, tokenizer: FullTokenizer) -> tuple[int, int]:
    """Returns the indices of the first and the last token of the question's first answer in the context.

    If the answer is only a part of a token, such as "3" in "33.3%", the tokens contain more than the answer. In this
    case, as in the original, tokens of the same words that are equal to the tokens of the answer are preferred.

    Returns:
        The two indices, or -1 and -1 if the question has no answer.
    """
    if not question.answers:
        return -1, -1
    answer = question.answers[0]
    end = answer.start + len(answer.text)
    # Pieces are in the order of the text. A piece that is partly in the answer counts.
    held = np.flatnonzero((context.ends > answer.start) & (context.starts < end))
    if not len(held):
        return -1, -1
    first, last = int(held[0]), int(held[-1])
    if context.starts[first] < answer.start or context.ends[last] > end:
        return _same_tokens(tokenizer, answer, context) or (first, last)
    return first, last


def _same_tokens(tokenizer: FullTokenizer, answer: Answer, context: Context) -> tuple[int, int] | None:
    """Tokenizes the answer by itself and searches for it among the tokens of the context words that it overlaps.

    Returns:
        The indices of the first and the last token of the first match, or None if nothing matches.
    """
    end = answer.start + len(answer.text)
    before, after = context.text[: answer.start].rsplit(maxsplit=1), context.text[end:].split(maxsplit=1)
    word_start = answer.start - (len(before[-1]) if before and not context.text[answer.start - 1].isspace() else 0)
    word_end = end + (len(after[0]) if after and not context.text[end].isspace() else 0)
    within = np.flatnonzero((context.starts >= word_start) & (context.ends <= word_end)).tolist()
    wanted = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(answer.text))
    for first in within[: len(within) - len(wanted) + 1]:
        if wanted and context.ids[first : first + len(wanted)].tolist() == wanted:
            return first, first + len(wanted) - 1
    return None


def list_windows(features: Features) -> list[Window]:
    """Returns the window in each row of the result of `featurize`."""
    windows = []
    for row, (first, last) in enumerate(itertools.pairwise(features.splits.tolist())):
        offset = int(np.argmax(features.segment_ids[first:last]))  # after the first [SEP]
        here = slice(first + offset, last - 1)
        starts, ends, has_most_context = (features.details[name][here] for name in _DETAILS)
        windows.append(Window(int(features.details[EXAMPLE][row]), offset, starts, ends, has_most_context))
    return windows
