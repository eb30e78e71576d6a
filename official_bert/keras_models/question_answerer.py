"""A Keras model that finds the answer to a question in a text."""

from collections.abc import Mapping
from typing import Any

import keras

from official_bert.keras_models.fitting_model import FittingModel
from official_bert.kinds.question_answering.spec import QuestionAnsweringSpec, TextAnswer
from official_bert.modeling.config import BertConfig


@keras.saving.register_keras_serializable(package="official_bert")
class QuestionAnswerer(FittingModel):
    """Extractive question answering: the answer is a part of the context (SQuAD; paper, sections 4.2 and 4.3).

    x is a tuple of questions and contexts, or a list of (question, context) rows. y contains answers: a text from the
    context, or a tuple of that text and the position of its first character in the context. With no_answer=True, None
    means that the context contains no answer. predict returns a TextAnswer for each question.

    Args:
        config: Sizes of the encoder: a BertConfig or a dict of its fields.
        vocab: Contents of the model's vocab.txt.
        no_answer: Whether a question may have no answer, as in SQuAD v2.0.
        null_score_diff_threshold: The model predicts "no answer" if its score exceeds the score of the best answer by
            more than this number.
        doc_stride: Number of tokens between the starts of two windows of a long context.
        max_query_length: Maximum number of tokens of a question. Longer questions are truncated.
        max_answer_length: Maximum number of tokens of an answer.
        n_best_size: Number of the best start positions, and of the best end positions, that are combined to answers.
        settings: Other arguments of TextModel.
    """

    spec: QuestionAnsweringSpec
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
        spec = QuestionAnsweringSpec(
            version_2=no_answer, null_score_diff_threshold=null_score_diff_threshold, doc_stride=doc_stride,
            max_query_length=max_query_length, max_answer_length=max_answer_length, n_best_size=n_best_size,
        )  # fmt: skip
        super().__init__(spec, config, vocab, **settings)

    @classmethod
    def _get_settings(cls, task_spec: Mapping[str, Any]) -> dict[str, Any]:
        return {"no_answer": task_spec.get("version_2", False), **super()._get_settings(task_spec)}

    def answer(self, question: str, context: str) -> TextAnswer:
        """Returns the answer to one question."""
        answers: list[TextAnswer] = self.predict(([question], [context]))
        return answers[0]
