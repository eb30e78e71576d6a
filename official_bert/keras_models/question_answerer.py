"""Questions about a context to the characters of an answer."""

from collections.abc import Mapping
from typing import Any

import keras

from official_bert.keras_models.text_model import TextModel
from official_bert.kinds.question_answering.spec import QuestionAnsweringSpec, TextAnswer
from official_bert.modeling.config import BertConfig


@keras.saving.register_keras_serializable(package="official_bert")
class QuestionAnswerer(TextModel):
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
        settings: as of TextModel.
    """

    head: QuestionAnsweringSpec
    default_name = "question_answerer"
    kinds = (QuestionAnsweringSpec.kind,)

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
        head = QuestionAnsweringSpec(
            version_2=no_answer, null_score_diff_threshold=null_score_diff_threshold, doc_stride=doc_stride,
            max_query_length=max_query_length, max_answer_length=max_answer_length, n_best_size=n_best_size,
        )  # fmt: skip
        super().__init__(head, config, vocab, **settings)

    def _own_config(self) -> dict[str, Any]:
        return self._settings_of(self.head.settings)

    @classmethod
    def _settings_of(cls, spec: Mapping[str, Any]) -> dict[str, Any]:
        names = ("null_score_diff_threshold", "doc_stride", "max_query_length", "max_answer_length", "n_best_size")
        return {"no_answer": spec["version_2"], **{name: spec[name] for name in names}}

    def answer(self, question: str, context: str) -> TextAnswer:
        """Returns the answer to one question."""
        answers: list[TextAnswer] = self.predict(([question], [context]))
        return answers[0]
