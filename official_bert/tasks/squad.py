"""SQuAD (v1.1: arXiv:1606.05250, v2.0: arXiv:1806.03822): questions, and the windows of context about which they are.

An answer is a span of characters of the context. Each piece of the context has its characters beside it, so that an
answer becomes positions, and positions an answer, without any guessing.

Defects of the original script that are mended here:

- It stops at a training question with several answers; here the first is learnt.
- It drops a training question whose answer is not in the context with a line in the log, among thousands; here that is
  a bad row, at which reading stops, or which is counted.
- Of two questions with one id it keeps the answer to one; here the second is a bad row.
- A context without a token has no window, so that its question got no answer; here it has an empty one.
"""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from official_bert.errors import UserError
from official_bert.tasks import windows
from official_bert.tasks.tfds_data import DataSet
from official_bert.tokenization import pairs
from official_bert.tokenization.exact import CLS, SEP, BasicTokenizer, FullTokenizer
from official_bert.utils import files
from official_bert.utils.bad_rows import BadRows
from official_bert.utils.progress import Progress

_MAX_BYTES = 4 << 30  # of a file of questions; SQuAD's largest has 42 MB


@dataclasses.dataclass(frozen=True)
class Answer:
    """A text, and the number of the context's character at which it begins."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a context.

    Attributes:
        id: what predictions are named by.
        text: the question.
        context: where to look.
        answers: any of them is right; empty if there is none in the context, None if they are not known.
    """

    id: str
    text: str
    context: str
    answers: tuple[Answer, ...] | None


@dataclasses.dataclass(frozen=True)
class Limits:
    """How much a window holds; the defaults are the original's.

    Attributes:
        max_seq_length: tokens of a window, with the question, [CLS] and two [SEP].
        doc_stride: tokens of context from one window's first to the next one's.
        max_query_length: tokens of a question that are kept.

    Raises:
        UserError: they leave no room for context.
    """

    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64

    def __post_init__(self) -> None:
        if self.max_query_length < 1 or self.doc_stride < 1:
            raise UserError(
                f"--max_query_length={self.max_query_length} and --doc_stride={self.doc_stride}: expected 1 or more"
            )
        if self.max_seq_length <= self.max_query_length + 3:
            raise UserError(
                f"--max_seq_length={self.max_seq_length} leaves no room for context beside a question of "
                f"{self.max_query_length} tokens, [CLS] and two [SEP]; raise it or lower --max_query_length"
            )


@dataclasses.dataclass(frozen=True)
class Context:
    """A context's pieces, and the characters text[starts[i]:ends[i]] that each stands for; arrays of one length."""

    text: str
    ids: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32]


@dataclasses.dataclass(frozen=True)
class Window:
    """[CLS] question [SEP] some of the context [SEP], without padding.

    Attributes:
        question: the question's number.
        input_ids: the tokens.
        segment_ids: 0 up to the first [SEP], 1 after it.
        offset: the position in `input_ids` of the first token of context.
        starts: for each token of context here, the character of the context at which it begins.
        ends: the character after its last one, likewise.
        has_most_context: whether no other window sees more on both sides of it, likewise.
        start_position: where the answer begins in `input_ids`; 0, for [CLS], if there is none or not here.
        end_position: where its last token stands, likewise.
    """

    question: int
    input_ids: list[int]
    segment_ids: list[int]
    offset: int
    starts: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32]
    has_most_context: npt.NDArray[np.bool_]
    start_position: int = 0
    end_position: int = 0


def read(path: str, version_2: bool, for_training: bool, bad_rows: BadRows) -> list[Question]:
    """Reads a file in SQuAD's JSON.

    Args:
        path: the file.
        version_2: whether questions may have no answer in their context (`is_impossible`).
        for_training: whether an answer is to be learnt: each question then needs one, where it says in the context (or,
            in v2.0, none). Otherwise answers may be missing, and where they begin is not looked at.
        bad_rows: gets each question that is wrong, by its id.

    Raises:
        UserError: the file is not in that layout, or has no good question.
    """
    questions: list[Question] = []
    seen = set()
    words = BasicTokenizer()
    for question in _questions(path, version_2):
        reason = _problem(question, words) if for_training else None
        if question.answers == () and not version_2:
            reason = "it has no answer (is_impossible), which v1.1 does not have; use the task of v2.0"
        if question.id in seen:
            reason = "its id was used before; every question needs its own, since predictions go by it"
        seen.add(question.id)
        if reason:
            bad_rows.add(path, f"question {question.id}", reason)
        else:
            questions.append(question)
    if not questions:
        raise UserError(f"{path} has no questions; expected SQuAD's JSON with data, paragraphs and qas")
    return questions


def read_tfds(data_dir: str | None, split: str, version_2: bool, bad_rows: BadRows) -> list[Question]:
    """Reads the set from TensorFlow Datasets, which has the parts train and dev.

    Args:
        data_dir: where that keeps its files; None for its default.
        split: train or dev.
        version_2: whether questions may have no answer.
        bad_rows: gets the questions that cannot be learnt.
    """
    data = DataSet("squad/v2.0" if version_2 else "squad/v1.1", data_dir)
    questions = []
    words = BasicTokenizer()
    for row in data.rows(split):
        texts, starts = row["answers"]["text"], row["answers"]["answer_start"]
        answers = tuple(Answer(text, start) for text, start in zip(texts, starts, strict=True))
        question = Question(row["id"], row["question"], row["context"], answers)
        if reason := _problem(question, words) if split == "train" else None:
            bad_rows.add(data.name, f"question {question.id}", reason)
        else:
            questions.append(question)
    return questions


def _problem(question: Question, words: BasicTokenizer) -> str | None:
    """Why the question cannot be learnt, or None."""
    if question.answers is None:
        return "it has no answers; expected one to learn"
    if not question.answers:
        return None
    answer = question.answers[0]
    if not words.tokenize(answer.text):
        return f"its answer {answer.text!r} has no word"
    there = question.context[max(answer.start, 0) :][: len(answer.text)]
    if answer.start < 0 or there != answer.text:
        return f"the context has {there!r} at character {answer.start}, not the answer {answer.text!r}"
    return None


def _questions(path: str, version_2: bool) -> Iterator[Question]:
    content = files.read_json_object(path, max_bytes=_MAX_BYTES)
    for article_number, article in enumerate(_get(content, "data", list, path)):
        article_name = f"{path}, article {article_number}"
        for paragraph_number, paragraph in enumerate(_get(article, "paragraphs", list, article_name)):
            paragraph_name = f"{article_name}, paragraph {paragraph_number}"
            context = _get(paragraph, "context", str, paragraph_name)
            for number, entry in enumerate(_get(paragraph, "qas", list, paragraph_name)):
                name = _get(entry, "id", str, f"{paragraph_name}, question {number}")
                where = f"{path}, question {name}"
                text = _get(entry, "question", str, where)
                yield Question(name, text, context, _answers(entry, where, version_2))


def _answers(entry: dict[str, Any], where: str, version_2: bool) -> tuple[Answer, ...] | None:
    if "is_impossible" in entry and _get(entry, "is_impossible", bool, where):
        return ()
    answers = _get(entry, "answers", list, where) if "answers" in entry else None
    if not answers and not (version_2 and answers == []):
        return None
    return tuple(
        Answer(_get(answer, "text", str, where), _get(answer, "answer_start", int, where)) for answer in answers
    )


def _get(holder: Any, name: str, kind: type, where: str) -> Any:
    if not isinstance(holder, dict) or name not in holder:
        raise UserError(f"{where}: there is no {name!r}; expected SQuAD's JSON")
    if not isinstance(holder[name], kind):
        raise UserError(f"{where}: {name!r} is {json.dumps(holder[name])[:80]}; expected {kind.__name__}")
    return holder[name]


def tokenize_context(text: str, tokenizer: FullTokenizer) -> Context:
    """Cuts a context into pieces with their characters."""
    pieces = tokenizer.tokenize_with_offsets(text)
    return Context(
        text,
        np.array(tokenizer.convert_tokens_to_ids(piece.token for piece in pieces), np.int32),
        np.array([piece.start for piece in pieces], np.int32),
        np.array([piece.end for piece in pieces], np.int32),
    )


def cut_into_windows(questions: Sequence[Question], tokenizer: FullTokenizer, limits: Limits) -> list[Window]:
    """Returns the windows of all questions, those of one after those of the other.

    A context is cut into pieces once, however many questions are about it, if they follow each other.
    """
    cut: list[Window] = []
    context = None
    progress = Progress("featurizing", len(questions), "questions")
    for number, question in enumerate(questions):
        if context is None or context.text != question.context:
            context = tokenize_context(question.context, tokenizer)
        cut += windows_of(number, question, context, tokenizer, limits)
        progress.update(number + 1)
    return cut


def windows_of(
    number: int, question: Question, context: Context, tokenizer: FullTokenizer, limits: Limits
) -> Iterator[Window]:
    """Yields the windows of one question, which has that number.

    The start and end of an answer are those of the pieces that hold its characters. (The original takes the words
    between white space, and shrinks them while what remains reads like the answer.) A window that does not hold the
    whole answer has none to learn, as in the original.
    """
    query = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(question.text)[: limits.max_query_length])
    cls, sep = tokenizer.convert_tokens_to_ids([CLS, SEP])
    room = limits.max_seq_length - len(query) - 3
    count = len(context.ids)
    spans = [(start, min(start + room, count)) for start in windows.starts(count, room, limits.doc_stride)]
    owners = windows.with_most_context(spans, count)
    answer_first, answer_last = answer_tokens(question, context, tokenizer)
    for index, (start, end) in enumerate(spans):
        input_ids, segment_ids = pairs.join(cls, sep, query, context.ids[start:end].tolist())
        offset = len(query) + 2
        here = start <= answer_first <= answer_last < end
        yield Window(
            question=number,
            input_ids=input_ids,
            segment_ids=segment_ids,
            offset=offset,
            starts=context.starts[start:end],
            ends=context.ends[start:end],
            has_most_context=owners[start:end] == index,
            start_position=offset + answer_first - start if here else 0,
            end_position=offset + answer_last - start if here else 0,
        )


def answer_tokens(question: Question, context: Context, tokenizer: FullTokenizer) -> tuple[int, int]:
    """Returns the first and the last of the context's tokens that hold the first answer; -1 if there is none.

    Where the answer cuts a piece, as "3" in "33.3%", these tokens hold more than the answer. Then tokens that are the
    answer's own are taken instead, if there are such within the same words, as the original does.
    """
    if not question.answers:
        return -1, -1
    answer = question.answers[0]
    end = answer.start + len(answer.text)
    # Pieces are in the order of the text; one that is cut by the answer's edge belongs to it.
    held = np.flatnonzero((context.ends > answer.start) & (context.starts < end))
    if not len(held):
        return -1, -1
    first, last = int(held[0]), int(held[-1])
    if context.starts[first] < answer.start or context.ends[last] > end:
        return _same_tokens(tokenizer, answer, context) or (first, last)
    return first, last


def _same_tokens(tokenizer: FullTokenizer, answer: Answer, context: Context) -> tuple[int, int] | None:
    """The first tokens, within the words between white space that hold the answer, that are the answer's tokens."""
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
