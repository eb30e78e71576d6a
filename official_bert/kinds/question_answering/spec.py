"""The KindSpec of question answering: answers are spans of a context (paper, sections 4.2 and 4.3)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from official_bert.errors import UserError
from official_bert.kinds import input_adapters
from official_bert.kinds.features import Array, Features, Outputs, describe_truncation
from official_bert.kinds.names import QUESTION_ANSWERING
from official_bert.kinds.question_answering import candidates, questions, squad_scores
from official_bert.kinds.question_answering.candidates import Candidate, Prediction
from official_bert.kinds.question_answering.questions import END_LOGITS, OUTPUTS, START_LOGITS, Answer, Question
from official_bert.kinds.spec import KindSpec, Outcome
from official_bert.kinds.synthetic_texts import SyntheticTexts
from official_bert.tokenization.exact import FullTokenizer


class TextAnswer(NamedTuple):
    """An answer to a question: context[start:end], in characters, and its probability among the candidates.

    If the question has no answer, the text is empty, and start and end are 0.
    """

    text: str
    start: int
    end: int
    probability: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionAnsweringSpec(KindSpec):
    """The KindSpec of question answering. A prediction has the best candidate answers to a question."""

    kind: ClassVar[str] = QUESTION_ANSWERING
    decoding: ClassVar[str] = (
        "The answer is the span of at most max_answer_length tokens of the context with the largest sum of start "
        "and end logits. Of several windows, only the one that shows the most context around a token counts as its"
        " start. With version_2, the answer is empty if the sum at [CLS] exceeds the answer's by more than "
        "null_score_diff_threshold."
    )
    best_possible_score: ClassVar[float] = 100.0
    has_own_scores: ClassVar[bool] = True
    reads_windows: ClassVar[bool] = True
    default_max_seq_length: ClassVar[int] = 384
    length_limit: ClassVar[str] = "max_query_length"
    stores_defaults: ClassVar[bool] = True
    text_inputs: ClassVar[tuple[str, ...]] = ("question", "context")
    discrete_outputs: ClassVar[tuple[str, ...]] = ("answer", "start", "end", "probability")
    decision_settings: ClassVar[tuple[str, ...]] = ("null_score_diff_threshold", "n_best_size", "max_answer_length")
    answer_dtypes: ClassVar[Mapping[str, Any]] = {
        "answer": object,
        "start": np.int32,
        "end": np.int32,
        "probability": np.float32,
        "null_score_difference": np.float32,
    }

    pair: bool = True
    doc_stride: int = 128  # tokens from one window of a long context to the next
    max_query_length: int = 64  # tokens of a question that are kept
    max_answer_length: int = 30  # tokens of the longest answer
    n_best_size: int = 20  # number of the best starts and of the best ends that are combined
    version_2: bool = False  # whether a context may hold no answer, as in SQuAD v2.0
    null_score_diff_threshold: float = 0.0  # how far "no answer" must score above the best answer

    @property
    def score_names(self) -> tuple[str, ...]:
        return ("best_f1", "best_exact", "f1", "exact") if self.version_2 else ("f1", "exact_match")

    def make_examples(self, x: Any, y: Any) -> list[Question]:
        texts, contexts = input_adapters.to_pairs(x, columns=self.text_inputs)
        rows: list[Any] = [None] * len(texts) if y is None else input_adapters.to_list(y, "y")
        input_adapters.check_same_length(len(texts), rows, "y")
        return [
            Question(str(number), text, context, None if y is None else self._parse_answers(row, number, context))
            for number, (text, context, row) in enumerate(zip(texts, contexts, rows, strict=True))
        ]

    def _parse_answers(self, answer: Any, number: int, context: str) -> tuple[Answer, ...]:
        if answer is None or (isinstance(answer, str | bytes) and not answer):
            if not self.version_2:
                raise UserError(
                    f"y[{number}] is empty; to train on questions without an answer, pass no_answer=True to the model"
                )
            return ()
        is_pair = isinstance(answer, list | tuple | np.ndarray) and len(answer) == 2
        if not is_pair and not isinstance(answer, str | bytes):
            raise UserError(
                f"y[{number}] is {input_adapters.format_value(answer)}; expected the text of the answer, or a tuple "
                "(text, index of its first character in the context)"
            )
        if not is_pair:
            text = input_adapters.to_text(answer, f"y[{number}]")
            start = context.find(text)
        else:
            text, place = input_adapters.to_text(answer[0], f"y[{number}]"), input_adapters.to_number(answer[1])
            start = int(place) if place.is_integer() else -1
        if start < 0 or context[start : start + len(text)] != text:
            position = " at this position" if is_pair else ""
            raise UserError(f"y[{number}] is {answer!r}, which is not in the context{position}")
        return (Answer(text, start),)

    def synthetic_texts(self, texts: SyntheticTexts, max_seq_length: int) -> dict[str, list[Any]]:
        rows = texts.questions(max_seq_length - 3, self.max_query_length)
        return {"question": [question for question, _ in rows], "context": [context for _, context in rows]}

    def collect_texts(self, examples: Sequence[Question]) -> dict[str, list[Any]]:
        return {"question": [each.text for each in examples], "context": [each.context for each in examples]}

    def named_answers(self, predictions: Sequence[Prediction], examples: Sequence[Question]) -> dict[str, list[Any]]:
        final = self.choose_answers(predictions)
        return {
            "answer": [each.text for each in final],
            "start": [each.start for each in final],
            "end": [each.end for each in final],
            "probability": [each.probability for each in final],
            "null_score_difference": [each.null_score_difference for each in predictions],
        }

    def margins(self, outputs: Outputs, features: Features, examples: Sequence[Question]) -> list[float]:
        margins = []
        for each in self.decode(outputs, features, examples):
            probabilities = [candidate.probability for candidate in each.candidates[:2]] + [0.0]
            margin = probabilities[0] - probabilities[1]
            if self.version_2:
                margin = min(margin, abs(each.null_score_difference - self.null_score_diff_threshold))
            margins.append(margin)
        return margins

    def featurize(self, examples: Sequence[Question], tokenizer: FullTokenizer, max_seq_length: int) -> Features:
        return questions.featurize(examples, tokenizer, max_seq_length, self.doc_stride, self.max_query_length)

    def describe_truncation(self, num_truncated: int, num_examples: int, max_seq_length: int) -> str | None:
        return describe_truncation(num_truncated, num_examples, "question", self.max_query_length, self.length_limit)

    def loss_weights(self) -> dict[str, float]:
        """Returns 0.5 for each output: the loss is the mean of the losses of start and end, as in the original."""
        return dict.fromkeys(OUTPUTS, 0.5)

    def blank_targets(self, tokens: int) -> dict[str, Array]:
        return {name: np.zeros(1, np.int32) for name in OUTPUTS}

    def decode(self, outputs: Outputs, features: Features, examples: Sequence[Question]) -> list[Prediction]:
        return candidates.predict(
            examples, questions.list_windows(features), outputs[START_LOGITS], outputs[END_LOGITS], self.version_2,
            self.n_best_size, self.max_answer_length,
        )  # fmt: skip

    def answers(self, predictions: Sequence[Prediction]) -> list[TextAnswer]:
        return [
            TextAnswer(each.text, each.start, each.end, each.probability) for each in self.choose_answers(predictions)
        ]

    def choose_answers(self, predictions: Sequence[Prediction]) -> list[Candidate]:
        """Returns the final answer to each question: its best candidate, or the empty candidate for "no answer"."""
        return [each.answer(self.version_2, self.null_score_diff_threshold) for each in predictions]

    def scores(self, predictions: Sequence[Prediction], examples: Sequence[Question]) -> dict[str, float]:
        texts = {
            question.id: each.text for question, each in zip(examples, self.choose_answers(predictions), strict=True)
        }
        if not self.version_2:
            return squad_scores.score_version_1(examples, texts)
        best = {question.id: each.best.text for question, each in zip(examples, predictions, strict=True)}
        return squad_scores.score_version_2(examples, texts, null_odds(predictions, examples), best)

    def outcomes(self, predictions: Sequence[Prediction], examples: Sequence[Question]) -> list[Outcome]:
        outcomes = []
        for question, candidate in zip(examples, self.choose_answers(predictions), strict=True):
            expected = list(dict.fromkeys(answer.text for answer in question.answers or ())) or [""]
            correct = any(squad_scores.exact_match(candidate.text, each) for each in expected)
            shown = [each or "(no answer)" for each in (*expected, candidate.text)]
            text = f"{question.text} ||| {question.context}"
            outcomes.append(Outcome(text, " | ".join(shown[:-1]), shown[-1], correct, candidate.probability))
        return outcomes


def null_odds(predictions: Sequence[Prediction], questions: Sequence[Question]) -> dict[str, float]:
    """Returns the score of "no answer" minus the score of the best answer for each question, by question id."""
    return {question.id: each.null_score_difference for question, each in zip(questions, predictions, strict=True)}
