"""Questions about a context to the characters of an answer."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras

from official_bert.errors import UserError
from official_bert.keras_models import inputs
from official_bert.keras_models.base import BaseTextModel
from official_bert.modeling.config import BertConfig
from official_bert.modeling.task_models import QUESTION_ANSWERING, build_span_predictor
from official_bert.tasks import squad, squad_answers, squad_task
from official_bert.tasks.squad import Answer, Limits, Question
from official_bert.tasks.task import Features


class TextAnswer(NamedTuple):
    """An answer: the context's characters from `start` to `end`, and how likely it is among the candidates.

    The text is empty, and start and end are 0, where there is no answer.
    """

    text: str
    start: int
    end: int
    probability: float


@keras.saving.register_keras_serializable(package="official_bert")
class QuestionAnswerer(BaseTextModel):
    """Answers that are part of a context (SQuAD; paper, sections 4.2 and 4.3).

    x is questions with their contexts: a tuple of two columns, or rows of two texts. y is answers: a text of the
    context, or a tuple of the text and the place of its first character; where no_answer is allowed, None for none.
    predict returns a TextAnswer for each question.

    Args:
        config: the encoder's sizes.
        vocab: the text of its vocab.txt.
        no_answer: whether a context may hold no answer, as in SQuAD v2.0.
        null_score_diff_threshold: by how much the score of "no answer" must be above that of the best answer.
        doc_stride: tokens from one window of a long context to the next.
        max_query_length: tokens of a question that are kept.
        max_answer_length: tokens of the longest answer.
        n_best_size: starts and ends that are looked at.
        settings: as of BaseTextModel.
    """

    kind = QUESTION_ANSWERING
    default_name = "question_answerer"
    default_max_seq_length = 384
    pair = True

    def __init__(
        self,
        config: BertConfig | Mapping[str, Any],
        vocab: str,
        *,
        no_answer: bool = False,
        null_score_diff_threshold: float = 0.0,
        doc_stride: int = 128,
        max_query_length: int = 64,
        max_answer_length: int = 30,
        n_best_size: int = 20,
        **settings: Any,
    ) -> None:
        super().__init__(config, vocab, **settings)
        self.no_answer, self.null_score_diff_threshold = no_answer, null_score_diff_threshold
        self.doc_stride, self.max_query_length = doc_stride, max_query_length
        self.max_answer_length, self.n_best_size = max_answer_length, n_best_size

    def _build_core(self, encoder: keras.Model, seed: int) -> keras.Model:
        return build_span_predictor(encoder, seed=seed)

    def _own_config(self) -> dict[str, Any]:
        return {
            "no_answer": self.no_answer,
            "null_score_diff_threshold": self.null_score_diff_threshold,
            "doc_stride": self.doc_stride,
            "max_query_length": self.max_query_length,
            "max_answer_length": self.max_answer_length,
            "n_best_size": self.n_best_size,
        }

    def _task_spec(self) -> dict[str, Any]:
        own = self._own_config()
        return {**super()._task_spec(), "pair": True, "version_2": own.pop("no_answer"), **own}

    @classmethod
    def _settings_of(cls, spec: Mapping[str, Any]) -> dict[str, Any]:
        names = ("null_score_diff_threshold", "doc_stride", "max_query_length", "max_answer_length", "n_best_size")
        return {
            **super()._settings_of(spec), "no_answer": spec["version_2"], **{name: spec[name] for name in names}
        }  # fmt: skip

    def _examples(self, x: Any, y: Any) -> list[Question]:
        questions, contexts = inputs.as_pairs(x)
        answers: list[Any] = [None] * len(questions) if y is None else inputs.as_list(y)
        inputs.check_same_length(len(questions), answers, "y")
        return [
            Question(str(number), question, context, None if y is None else self._answers(number, context, answer))
            for number, (question, context, answer) in enumerate(zip(questions, contexts, answers, strict=True))
        ]

    def _answers(self, number: int, context: str, answer: Any) -> tuple[Answer, ...]:
        if answer is None or answer in ("", b""):
            if not self.no_answer:
                raise UserError(f"y[{number}] is no answer; pass no_answer=True to the model to learn from such")
            return ()
        if isinstance(answer, str | bytes):
            text = inputs.as_text(answer, f"y[{number}]")
            start = context.find(text)
        else:
            text, start = inputs.as_text(answer[0], f"y[{number}]"), int(answer[1])
        if start < 0 or context[start : start + len(text)] != text:
            raise UserError(f"y[{number}] is {answer!r}, which the context does not have there")
        return (Answer(text, start),)

    def _featurize(self, examples: Sequence[Question]) -> Features:
        limits = Limits(self.max_seq_length, self.doc_stride, self.max_query_length)
        return squad_task.features_of(squad.cut_into_windows(examples, self._tokenizer.exact, limits), examples)

    def _decode(self, outputs: Any, features: Features, examples: Sequence[Question]) -> list[TextAnswer]:
        predictions = squad_answers.predict(
            examples, squad_task.windows_of(features), outputs[squad_task.START_LOGITS],
            outputs[squad_task.END_LOGITS], self.no_answer, self.n_best_size, self.max_answer_length,
        )  # fmt: skip
        best = [each.answer(self.no_answer, self.null_score_diff_threshold) for each in predictions]
        return [TextAnswer(each.text, each.start, each.end, each.probability) for each in best]

    def _task_metrics(self) -> Any:
        return {
            name: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
            for name in (squad_task.START_LOGITS, squad_task.END_LOGITS)
        }

    def answer(self, question: str, context: str) -> TextAnswer:
        """Returns the answer to one question."""
        answers: list[TextAnswer] = self.predict(([question], [context]))
        return answers[0]
