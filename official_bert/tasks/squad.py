"""The tasks SQuAD v1.1 (arXiv:1606.05250) and v2.0 (arXiv:1806.03822).

Differences from the original script:

- It stops at a training question that has several answers. Here, the first answer is used.
- It drops a training question whose answer is not in the context, with only a log line. Here, the question is a bad
  row: it stops the run, or is skipped and counted.
- It keeps only one of two answers whose questions have the same id. Here, the second question is a bad row.
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
from official_bert.utils.bad_rows import BadRows

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
        return read(path, self.spec.version_2, split == TRAIN, bad_rows)

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


def read(path: str, version_2: bool, for_training: bool, bad_rows: BadRows) -> list[Question]:
    """Reads the questions in a file in SQuAD's JSON format.

    Args:
        path: The file.
        version_2: Whether the file is SQuAD v2.0's, where a question may have no answer (`is_impossible`).
        for_training: Whether each question needs an answer that occurs at the stated position of its context (or is
            impossible). If false, answers may be missing, and their positions are not checked.
        bad_rows: Handles invalid questions, which are identified by their id.

    Raises:
        UserError: If the file has another format or no valid question.
    """
    questions: list[Question] = []
    seen = set()
    words = BasicTokenizer()
    for question in _iterate_questions(path, version_2):
        reason = _find_problem(question, words) if for_training else None
        if question.answers == () and not version_2:
            reason = "it has no answer (is_impossible), which only SQuAD v2.0 supports; use --task=squad_v2"
        if question.id in seen:
            reason = "another question has the same id; every question needs its own id"
        seen.add(question.id)
        if reason:
            bad_rows.add(path, f"question {question.id}", reason)
        else:
            questions.append(question)
    if not questions:
        reason = bad_rows.first_reason(path)
        raise UserError(f"{path} has no questions; expected SQuAD's JSON with data, paragraphs and qas{reason}")
    return questions


def _find_problem(question: Question, words: BasicTokenizer) -> str | None:
    """Returns why a question cannot be used for training, or None if it can."""
    if question.answers is None:
        return "it has no answers; expected one"
    if not question.answers:
        return None
    answer = question.answers[0]
    if not words.tokenize(answer.text):
        return f"its answer {answer.text!r} has no word"
    found = question.context[max(answer.start, 0) :][: len(answer.text)]
    if answer.start < 0 or found != answer.text:
        return f"the context has {found!r} at character {answer.start}, not the answer {answer.text!r}"
    return None


def _iterate_questions(path: str, version_2: bool) -> Iterator[Question]:
    content = files.read_json_object(path, max_bytes=_MAX_BYTES)
    for article_number, article in enumerate(_get(content, "data", list, path)):
        article_name = f"{path}, article {article_number}"
        for paragraph_number, paragraph in enumerate(_get(article, "paragraphs", list, article_name)):
            paragraph_name = f"{article_name}, paragraph {paragraph_number}"
            context = _get(paragraph, "context", str, paragraph_name)
            for number, entry in enumerate(_get(paragraph, "qas", list, paragraph_name)):
                name = _get_question_id(entry, f"{paragraph_name}, question {number}")
                where = f"{path}, question {name}"
                text = _get(entry, "question", str, where)
                yield Question(name, text, context, _get_answers(entry, where, version_2))


def _get_question_id(entry: Any, where: str) -> str:
    """Returns the id of a question as text. Like the original, it accepts integers."""
    if isinstance(entry, dict) and isinstance(entry.get("id"), int) and not isinstance(entry["id"], bool):
        return str(entry["id"])
    return str(_get(entry, "id", str, where))


def _get_answers(entry: dict[str, Any], where: str, version_2: bool) -> tuple[Answer, ...] | None:
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
        raise UserError(f"{where}: {name!r} is missing; expected SQuAD's JSON")
    if not isinstance(holder[name], kind):
        raise UserError(f"{where}: {name!r} is {json.dumps(holder[name])[:80]}; expected {kind.__name__}")
    return holder[name]
