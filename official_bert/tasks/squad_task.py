"""SQuAD v1.1 and v2.0 as tasks of run_finetuning.

R windows, T tokens of all windows
"""

import itertools
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from official_bert import files, task_models
from official_bert.fast_tokenization import FastTokenizer
from official_bert.finetuning_options import Options
from official_bert.tasks import data_files, squad, squad_answers, squad_scores
from official_bert.tasks.bad_rows import BadRows
from official_bert.tasks.squad import Limits, Question, Window
from official_bert.tasks.squad_answers import Prediction
from official_bert.tasks.task import DEV, EXAMPLE, TRAIN, Defaults, Features, Outcome, Outputs, Task, from_rows

DOC_STRIDE = 128  # the original's

START_LOGITS, END_LOGITS = "start_logits", "end_logits"
# In Features.details, for each token [T]: the characters of the context that it stands for, both 0 for those that are
# not of the context; and whether this is the window that sees most around it.
_STARTS, _ENDS, _HAS_MOST_CONTEXT = "starts", "ends", "has_most_context"


def make_version_1(options: Options) -> Task:
    """Returns the task of SQuAD v1.1 as the options shape it."""
    return _make(options, version_2=False)


def make_version_2(options: Options) -> Task:
    """Returns the task of SQuAD v2.0 as the options shape it."""
    return _make(options, version_2=True)


def _make(options: Options, version_2: bool) -> Task:
    return task(
        version_2,
        options.doc_stride or DOC_STRIDE,
        options.max_query_length,
        options.n_best_size,
        options.max_answer_length,
        options.null_score_diff_threshold,
    )


def task(
    version_2: bool,
    doc_stride: int = DOC_STRIDE,
    max_query_length: int = 64,
    n_best_size: int = 20,
    max_answer_length: int = 30,
    null_score_diff_threshold: float = 0.0,
) -> Task:
    """Returns the task, with the original's defaults.

    The data_dir holds train-v1.1.json and dev-v1.1.json, or train-v2.0.json and dev-v2.0.json; a name may be longer,
    and a file to predict begins with test.

    Args:
        version_2: whether questions may have no answer in their context.
        doc_stride: tokens from one window to the next.
        max_query_length: tokens of a question that are kept.
        n_best_size: how many answers are kept for each question.
        max_answer_length: of an answer, in tokens.
        null_score_diff_threshold: with v2.0, the empty answer is given if it scores by more than this above the best.
    """
    version = "v2.0" if version_2 else "v1.1"

    def read(data_dir: str, split: str, bad_rows: BadRows) -> list[Question]:
        path = data_files.find(data_dir, split, (f"{split}-{version}.json", f"{split}-{version}*.json"))
        return squad.read(path, version_2, split == TRAIN, bad_rows)

    def featurize(questions: Sequence[Question], tokenizer: FastTokenizer, max_seq_length: int) -> Features:
        limits = Limits(max_seq_length, doc_stride, max_query_length)
        return features_of(squad.cut_into_windows(questions, tokenizer.exact, limits), questions)

    def decode(outputs: Outputs, features: Features, questions: Sequence[Question]) -> list[Prediction]:
        windows = windows_of(features)
        starts, ends = outputs[START_LOGITS], outputs[END_LOGITS]
        return squad_answers.predict(questions, windows, starts, ends, version_2, n_best_size, max_answer_length)

    def said(predictions: Sequence[Prediction], questions: Sequence[Question]) -> dict[str, str]:
        answers = [prediction.answer(version_2, null_score_diff_threshold).text for prediction in predictions]
        return {question.id: answer for question, answer in zip(questions, answers, strict=True)}

    def metrics(predictions: Sequence[Prediction], questions: Sequence[Question]) -> dict[str, float]:
        answers = said(predictions, questions)
        if not version_2:
            return squad_scores.score_version_1(questions, answers)
        best = {question.id: each.best.text for question, each in zip(questions, predictions, strict=True)}
        return squad_scores.score_version_2(questions, answers, _null_odds(predictions, questions), best)

    def write(folder: str, split: str, predictions: Sequence[Prediction], questions: Sequence[Question]) -> list[str]:
        prefix = "" if split == DEV else f"{split}_"
        contents: dict[str, Any] = {
            "predictions": said(predictions, questions),
            "nbest_predictions": _n_best(predictions, questions),
        }
        if version_2:
            contents["null_odds"] = _null_odds(predictions, questions)
        paths = []
        for name, content in contents.items():
            paths.append(os.path.join(folder, f"{prefix}{name}.json"))
            files.write_text(paths[-1], json.dumps(content, indent=4) + "\n")
        return paths

    def outcomes(predictions: Sequence[Prediction], questions: Sequence[Question]) -> list[Outcome]:
        made = []
        answers = said(predictions, questions)
        for question in questions:
            right = list(dict.fromkeys(answer.text for answer in question.answers or ())) or [""]
            answer = answers[question.id]
            correct = any(squad_scores.exact_match(answer, each) for each in right)
            shown = [each or "(no answer)" for each in (*right, answer)]
            text = f"{question.text} ||| {question.context}"
            made.append(Outcome(text, " | ".join(shown[:-1]), shown[-1], correct))
        return made

    return Task(
        name="squad_v2" if version_2 else "squad",
        kind=task_models.QUESTION_ANSWERING,
        labels=None,
        pair=True,
        read=read,
        featurize=featurize,
        decode=decode,
        metrics=metrics,
        best_metric="best_f1" if version_2 else "f1",
        perfect=100.0,
        write_predictions=write,
        outcomes=outcomes,
        read_tfds=lambda data_dir, split, bad_rows: squad.read_tfds(data_dir, split, version_2, bad_rows),
        defaults=Defaults(max_seq_length=384),
        settings={
            "doc_stride": doc_stride,
            "max_query_length": max_query_length,
            "max_answer_length": max_answer_length,
            "n_best_size": n_best_size,
            "version_2": version_2,
            "null_score_diff_threshold": null_score_diff_threshold,
        },
    )


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
