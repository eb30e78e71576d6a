"""SQuAD v1.1 and v2.0 as tasks of run_finetuning.

R windows, T tokens of all windows
"""

import itertools
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from official_bert.modeling import task_models
from official_bert.tasks import data_files, squad, squad_answers, squad_scores
from official_bert.tasks.options import SQUAD, SQUAD_V2, TFDS, SquadOptions, SquadV2Options
from official_bert.tasks.squad import Limits, Question, Window
from official_bert.tasks.squad_answers import Prediction
from official_bert.tasks.task import DEV, EXAMPLE, TRAIN, Features, Outcome, Outputs, Task, from_rows
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils import files
from official_bert.utils.bad_rows import BadRows

START_LOGITS, END_LOGITS = "start_logits", "end_logits"
# In Features.details, for each token [T]: the characters of the context that it stands for, both 0 for those that are
# not of the context; and whether this is the window that sees most around it.
_STARTS, _ENDS, _HAS_MOST_CONTEXT = "starts", "ends", "has_most_context"


class SquadTask(Task):
    """SQuAD v1.1, or v2.0 if the options are those of that.

    Its data_dir holds train-v1.1.json and dev-v1.1.json, or train-v2.0.json and dev-v2.0.json; a name may be longer,
    and a file to predict begins with test.
    """

    kind = task_models.QUESTION_ANSWERING
    pair = True
    perfect = 100.0

    def __init__(self, options: SquadOptions) -> None:
        self._options = options
        self.version_2 = isinstance(options, SquadV2Options)
        self.name = SQUAD_V2 if self.version_2 else SQUAD
        self.best_metric = "best_f1" if self.version_2 else "f1"
        self._threshold = options.null_score_diff_threshold if isinstance(options, SquadV2Options) else 0.0
        self.settings = {
            "doc_stride": options.doc_stride,
            "max_query_length": options.max_query_length,
            "max_answer_length": options.max_answer_length,
            "n_best_size": options.n_best_size,
            "version_2": self.version_2,
            "null_score_diff_threshold": self._threshold,
        }

    def read(self, split: str, bad_rows: BadRows) -> list[Question]:
        folder = self._options.data_dir
        if self._options.source == TFDS:
            return squad.read_tfds(folder, split, self.version_2, bad_rows)
        version = "v2.0" if self.version_2 else "v1.1"
        path = data_files.find(folder, split, (f"{split}-{version}.json", f"{split}-{version}*.json"))
        return squad.read(path, self.version_2, split == TRAIN, bad_rows)

    def featurize(self, questions: Sequence[Question], tokenizer: FastTokenizer, max_seq_length: int) -> Features:
        limits = Limits(max_seq_length, self._options.doc_stride, self._options.max_query_length)
        return features_of(squad.cut_into_windows(questions, tokenizer.exact, limits), questions)

    def decode(self, outputs: Outputs, features: Features, questions: Sequence[Question]) -> list[Prediction]:
        return squad_answers.predict(
            questions,
            windows_of(features),
            outputs[START_LOGITS],
            outputs[END_LOGITS],
            self.version_2,
            self._options.n_best_size,
            self._options.max_answer_length,
        )

    def final_answers(self, predictions: Sequence[Prediction], questions: Sequence[Question]) -> dict[str, str]:
        """Returns the text that is answered to each question, by the question's id; empty for no answer."""
        answers = [prediction.answer(self.version_2, self._threshold).text for prediction in predictions]
        return {question.id: answer for question, answer in zip(questions, answers, strict=True)}

    def metrics(self, predictions: Sequence[Prediction], questions: Sequence[Question]) -> dict[str, float]:
        answers = self.final_answers(predictions, questions)
        if not self.version_2:
            return squad_scores.score_version_1(questions, answers)
        best = {question.id: each.best.text for question, each in zip(questions, predictions, strict=True)}
        return squad_scores.score_version_2(questions, answers, _null_odds(predictions, questions), best)

    def write_predictions(
        self, folder: str, split: str, predictions: Sequence[Prediction], questions: Sequence[Question]
    ) -> list[str]:
        """Writes the files of the original's script: answers, the best of each question and, in v2.0, null_odds."""
        prefix = "" if split == DEV else f"{split}_"
        contents: dict[str, Any] = {
            "predictions": self.final_answers(predictions, questions),
            "nbest_predictions": _n_best(predictions, questions),
        }
        if self.version_2:
            contents["null_odds"] = _null_odds(predictions, questions)
        paths = []
        for name, content in contents.items():
            paths.append(os.path.join(folder, f"{prefix}{name}.json"))
            files.write_text(paths[-1], json.dumps(content, indent=4) + "\n")
        return paths

    def outcomes(self, predictions: Sequence[Prediction], questions: Sequence[Question]) -> list[Outcome]:
        outcomes = []
        answers = self.final_answers(predictions, questions)
        for question, prediction in zip(questions, predictions, strict=True):
            expected = list(dict.fromkeys(answer.text for answer in question.answers or ())) or [""]
            answer = answers[question.id]
            correct = any(squad_scores.exact_match(answer, each) for each in expected)
            shown = [each or "(no answer)" for each in (*expected, answer)]
            text = f"{question.text} ||| {question.context}"
            certainty = prediction.answer(self.version_2, self._threshold).probability
            outcomes.append(Outcome(text, " | ".join(shown[:-1]), shown[-1], correct, certainty))
        return outcomes


def features_of(windows: Sequence[Window], questions: Sequence[Question]) -> Features:
    """Returns windows as the runner reads them; without targets if a question's answers are not known."""
    targets = {}
    if all(question.answers is not None for question in questions):
        targets = {
            START_LOGITS: np.array([window.start_position for window in windows], np.int32),
            END_LOGITS: np.array([window.end_position for window in windows], np.int32),
        }
    features = from_rows(
        [np.array(window.input_ids, np.int32) for window in windows],
        [np.array(window.segment_ids, np.int32) for window in windows],
        targets,
        {EXAMPLE: np.array([window.question for window in windows], np.int64)},
    )
    count = len(features.input_ids)
    details = {
        _STARTS: np.zeros(count, np.int32),
        _ENDS: np.zeros(count, np.int32),
        _HAS_MOST_CONTEXT: np.zeros(count, bool),
    }
    for window, first in zip(windows, features.splits.tolist(), strict=False):
        here = slice(first + window.offset, first + window.offset + len(window.starts))
        details[_STARTS][here] = window.starts
        details[_ENDS][here] = window.ends
        details[_HAS_MOST_CONTEXT][here] = window.has_most_context
    features.details.update(details)
    return features


def windows_of(features: Features) -> list[Window]:
    """Returns the windows that features were made of."""
    windows = []
    splits = features.splits.tolist()
    for row, (first, last) in enumerate(itertools.pairwise(splits)):
        ids, segment_ids = features.input_ids[first:last], features.segment_ids[first:last]
        offset = int(np.argmax(segment_ids))  # after the first [SEP]; a context without tokens has but a [SEP] there
        context = slice(first + offset, last - 1)
        windows.append(
            Window(
                question=int(features.details[EXAMPLE][row]),
                input_ids=ids.tolist(),
                segment_ids=segment_ids.tolist(),
                offset=offset,
                starts=features.details[_STARTS][context],
                ends=features.details[_ENDS][context],
                has_most_context=features.details[_HAS_MOST_CONTEXT][context],
            )
        )
    return windows


def _null_odds(predictions: Sequence[Prediction], questions: Sequence[Question]) -> dict[str, float]:
    return {question.id: each.null_score_difference for question, each in zip(questions, predictions, strict=True)}


def _n_best(predictions: Sequence[Prediction], questions: Sequence[Question]) -> dict[str, list[dict[str, Any]]]:
    """As the original's nbest_predictions.json."""
    return {
        question.id: [
            {
                "text": candidate.text,
                "probability": candidate.probability,
                "start_logit": candidate.start_logit,
                "end_logit": candidate.end_logit,
            }
            for candidate in prediction.candidates
        ]
        for question, prediction in zip(questions, predictions, strict=True)
    }
