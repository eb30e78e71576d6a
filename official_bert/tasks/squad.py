"""The tasks SQuAD v1.1 (arXiv:1606.05250) and v2.0 (arXiv:1806.03822).

Differences from the original script:

- It stops at a training question that has several answers. Here, the first answer is used.
- It drops a training question whose answer is not in the context, with only a log line. Here, the question is a bad
  row: it stops the run, or is skipped and counted.
- It keeps only one of two answers whose questions have the same id. Here, the second question is a bad row.
- It accepts a question without text, and in v2.0 an unanswerable question with answers. Here, these are bad rows in
  training and evaluation files.
- It writes no answer for a context without tokens. Here, the answer is empty.
"""

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.kinds.question_answering.candidates import Prediction
from official_bert.kinds.question_answering.questions import Answer, Question
from official_bert.kinds.question_answering.spec import QuestionAnsweringSpec, null_odds
from official_bert.tasks import data_files
from official_bert.tasks.options import SQUAD, SQUAD_V2, SquadOptions, SquadV2Options
from official_bert.tasks.task import DEV, TEST, TRAIN, Task
from official_bert.tokenization.exact import BasicTokenizer
from official_bert.utils import files
from official_bert.utils.bad_rows import BadRowError, BadRows

_MAX_BYTES = 4 << 30  # Limit for a file of questions. SQuAD's largest has 42 MB.


class SquadTask(Task):
    """The task SQuAD v1.1, or v2.0 if the options are SquadV2Options.

    The data_dir contains train-v1.1.json and dev-v1.1.json, or train-v2.0.json and dev-v2.0.json. The names may have a
    suffix after the version. The name of the file to predict starts with "test". The options train_file, eval_file and
    predict_file take precedence over these files.
    """

    spec: QuestionAnsweringSpec

    def __init__(self, options: SquadOptions) -> None:
        self._options = options
        version_2 = isinstance(options, SquadV2Options)
        spec = options.make_spec(QuestionAnsweringSpec, version_2=version_2)
        super().__init__(SQUAD_V2 if version_2 else SQUAD, spec, None if options.data_dir else options)

    def read(self, split: str, bad_rows: BadRows) -> list[Question]:
        options, version = self._options, "v2.0" if self.spec.version_2 else "v1.1"
        path = {TRAIN: options.train_file, DEV: options.eval_file, TEST: options.predict_file}[split]
        path = path or data_files.find(options.data_dir, split, (f"{split}-{version}.json", f"{split}-{version}*.json"))
        return read(path, self.spec.version_2, split, bad_rows)

    def write_predictions(
        self, folder: str, split: str, predictions: Sequence[Prediction], questions: Sequence[Question]
    ) -> list[str]:
        """Writes the original's files: answers, the n best answers and, in v2.0, null odds. Returns their paths."""
        answers = zip(questions, self.spec.choose_answers(predictions), strict=True)
        contents: dict[str, Any] = {
            "predictions": {question.id: candidate.text for question, candidate in answers},
            "nbest_predictions": _format_n_best(predictions, questions),
        }
        if self.spec.version_2:
            contents["null_odds"] = null_odds(predictions, questions)
        paths = []
        for name, content in contents.items():
            paths.append(os.path.join(folder, f"{name}_{split}.json"))
            files.write_text(paths[-1], json.dumps(content, indent=4) + "\n")
        return paths


def _format_n_best(predictions: Sequence[Prediction], questions: Sequence[Question]) -> dict[str, list[dict[str, Any]]]:
    """Returns the contents of the original's nbest_predictions.json: the n best answers by question id."""
    return {
        question.id: [
            {name: getattr(candidate, name) for name in ("text", "probability", "start_logit", "end_logit")}
            for candidate in prediction.candidates
        ]
        for question, prediction in zip(questions, predictions, strict=True)
    }


def read(path: str, version_2: bool, split: str, bad_rows: BadRows) -> list[Question]:
    """Reads the questions in a file in SQuAD's JSON format.

    Args:
        path: The file.
        version_2: Whether the file is SQuAD v2.0's, where a question may have no answer (`is_impossible`).
        split: TRAIN: each question needs an answer that occurs at the stated position of its context (or is
            impossible). DEV: positions are not checked. TEST: answers may be missing too.
        bad_rows: Handles invalid questions, which are identified by their id.

    Raises:
        UserError: If the file has another format or no valid question.
    """
    questions: dict[str, Question] = {}
    words = BasicTokenizer()
    for place, entry, context in _iterate_entries(path):
        with bad_rows.handle_error(path, place):
            question = Question(
                _get_question_id(entry), _get(entry, "question", str), context, _get_answers(entry, version_2, split)
            )
            if split != TEST and not question.text.strip():
                raise BadRowError("its question is empty")
            if split == TRAIN:
                _check_first_answer(question, words)
            if question.id in questions:
                raise BadRowError("another question has the same id; every question needs its own id")
            questions[question.id] = question
    if not questions:
        reason = bad_rows.first_reason(path)
        raise UserError(f"{path} has no questions; expected SQuAD's JSON with data, paragraphs and qas{reason}")
    return list(questions.values())


def _check_first_answer(question: Question, words: BasicTokenizer) -> None:
    """Raises a BadRowError if the first answer of a question, if any, is not in the context or has no word."""
    for answer in (question.answers or ())[:1]:
        if not words.tokenize(answer.text):
            raise BadRowError(f"its answer {answer.text!r} has no word")
        found = question.context[max(answer.start, 0) :][: len(answer.text)]
        if answer.start < 0 or found != answer.text:
            raise BadRowError(f"the context has {found!r} at character {answer.start}, not the answer {answer.text!r}")


def _iterate_entries(path: str) -> Iterator[tuple[str, Any, str]]:
    """Yields the place of each question for messages, its JSON object, and its context."""
    content = files.read_json_object(path, max_bytes=_MAX_BYTES)
    for article_number, article in enumerate(_get(content, "data", list, f"{path}: ")):
        article_name = f"article {article_number}"
        for paragraph_number, paragraph in enumerate(_get(article, "paragraphs", list, f"{path}, {article_name}: ")):
            paragraph_name = f"{article_name}, paragraph {paragraph_number}"
            context = _get(paragraph, "context", str, f"{path}, {paragraph_name}: ")
            for number, entry in enumerate(_get(paragraph, "qas", list, f"{path}, {paragraph_name}: ")):
                name = entry.get("id") if isinstance(entry, dict) else None
                has_id = isinstance(name, str | int)
                yield f"question {name}" if has_id else f"{paragraph_name}, question {number}", entry, context


def _get_question_id(entry: Any) -> str:
    """Returns the id of a question as text. Like the original, it accepts integers."""
    is_number = isinstance(entry, dict) and type(entry.get("id")) is int
    return str(_get(entry, "id", int if is_number else str))


def _get_answers(entry: dict[str, Any], version_2: bool, split: str) -> tuple[Answer, ...] | None:
    """Returns the answers to a question, () if it is impossible to answer, or None if the answers are unknown.

    Raises:
        BadRowError: If the answers have another format, contradict `is_impossible`, or are required and missing.
    """
    is_impossible = "is_impossible" in entry and _get(entry, "is_impossible", bool)
    answers = None
    if "answers" in entry:
        answers = tuple(
            Answer(_get(each, "text", str), _get(each, "answer_start", int)) for each in _get(entry, "answers", list)
        )
    if is_impossible and not version_2:
        raise BadRowError("it has no answer (is_impossible), which only SQuAD v2.0 supports; use --task=squad_v2")
    if is_impossible and answers and split != TEST:
        raise BadRowError(f"is_impossible is true, but it has the answer {answers[0].text!r}; remove one of them")
    # In evaluation data of v2.0, as in its script, an empty list of answers also means that there is no answer.
    is_required = answers is None or split == TRAIN or not version_2
    if split != TEST and not answers and not is_impossible and is_required:
        raise BadRowError(f"it has no answers; expected one{' or more, or is_impossible: true' if version_2 else ''}")
    return () if is_impossible else answers if answers or version_2 else None


def _get(holder: Any, name: str, kind: type, where: str = "") -> Any:
    """Returns the value of a key of a JSON object.

    Args:
        holder: The object.
        name: The key.
        kind: The type of the value.
        where: Start of the error message.

    Raises:
        BadRowError: If `holder` is not an object with this key, or the value has another type.
    """
    if not isinstance(holder, dict) or name not in holder:
        raise BadRowError(f"{where}{name!r} is missing; expected SQuAD's JSON")
    if type(holder[name]) is not kind:
        raise BadRowError(f"{where}{name!r} is {json.dumps(holder[name])[:80]}; expected {kind.__name__}")
    return holder[name]
