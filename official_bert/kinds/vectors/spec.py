"""The KindSpec of text vectors, which are trained on pairs or triplets of texts.

A text may itself be a text pair, written with " ||| " between its parts.

E examples, N texts of an example, D dimensions, T different texts
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from official_bert.errors import UserError
from official_bert.kinds import input_adapters, text_spec
from official_bert.kinds import scores as score_functions
from official_bert.kinds.features import LABELS, TEXTS, Array, Features, Outputs
from official_bert.kinds.names import COSINE, OBJECTIVES, RANKING, TRIPLET, VECTORS
from official_bert.kinds.spec import UNSTORED, KindSpec, Outcome
from official_bert.kinds.text_spec import TextExample
from official_bert.kinds.vectors import retrieval
from official_bert.modeling.choices import MEAN
from official_bert.tokenization.exact import FullTokenizer
from official_bert.tokenization.pairs import PAIR_SEPARATOR
from official_bert.utils.bad_rows import BadRowError


@dataclasses.dataclass(frozen=True)
class VectorExample:
    """A text, or for training an anchor, a positive (a text that belongs to it) and optionally a negative."""

    id: str  # the identifier in the file, or the index
    texts: tuple[str, ...]  # one, two or three texts, which may be pairs joined by " ||| "
    score: float | None = None  # the similarity of two texts, from 0 to 1, or None if it is not known


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorSpec(KindSpec):
    """The KindSpec of text vectors, which are pooled from the encoder's output without new weights.

    A prediction is float32 [D], or [N, D] for an example of several texts.

    Attributes:
        pooling: How token vectors are combined (see `modeling.pooling.build_vector_model`).
        layers: Indices of the encoder blocks whose outputs are pooled.
        normalize: Whether vectors are scaled to length 1.
        objective: The training objective, one of kinds.names.OBJECTIVES.
        scale: Factor of the cosines before the softmax of the RANKING objective.
        margin: Margin of the TRIPLET objective.
        dimensions: Sizes of prefixes of the vectors that are trained to be good vectors too (Matryoshka).
        score_range: The lowest and the highest similarity score in the data.
        graded: Whether evaluation compares cosines with similarity scores instead of ranking texts. None means True for
            the COSINE objective, else False.
    """

    kind: ClassVar[str] = VECTORS
    decoding: ClassVar[str] = "The output is the vector."
    supports_sample_weight: ClassVar[bool] = False
    has_head: ClassVar[bool] = False
    has_own_scores: ClassVar[bool] = True
    target_dtype: ClassVar[Any] = np.float32
    stores_defaults: ClassVar[bool] = True
    answer_dtypes: ClassVar[Mapping[str, Any]] = {"vector": np.float32}

    pooling: str = MEAN
    layers: tuple[int, ...] = (-1,)
    normalize: bool = False
    objective: str = RANKING
    scale: float = 20.0
    margin: float = 5.0
    dimensions: tuple[int, ...] = ()
    score_range: tuple[float, ...] = (0.0, 1.0)
    graded: bool | None = dataclasses.field(default=None, metadata=UNSTORED)

    def check(self, width: int) -> None:
        """Raises a UserError if a setting is invalid.

        Args:
            width: D, the size of the vectors.
        """
        if self.objective not in OBJECTIVES:
            raise UserError(f"objective is {self.objective!r}; expected one of {', '.join(OBJECTIVES)}")
        for name in ("scale", "margin"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise UserError(f"{name} is {value}; expected a positive number")
        wrong = [size for size in self.dimensions if not 1 <= size <= width]
        if wrong:
            raise UserError(
                f"dimensions contains {wrong[0]}; expected sizes from 1 to {width}, the size of the model's vectors"
            )
        if len(self.score_range) != 2 or not -math.inf < self.score_range[0] < self.score_range[1] < math.inf:
            shown = ", ".join(f"{value:g}" for value in self.score_range)
            raise UserError(f"score_range is {shown}; expected the lowest and the highest score, such as 0,5")

    def scale_score(self, score: Any, start: str) -> float:
        """Scales a similarity score from `score_range` to 0 to 1.

        Args:
            score: The score.
            start: The start of the error message, before the score.

        Raises:
            BadRowError: If the score is not in the range.
        """
        least, greatest = self.score_range
        value = input_adapters.to_number(score)
        if not least <= value <= greatest:
            raise BadRowError(
                f"{start} {input_adapters.format_value(score)}; expected {least:g} to {greatest:g}; set score_range "
                "for another scale, such as 0,5"
            )
        return (value - least) / (greatest - least)

    @property
    def score_names(self) -> tuple[str, ...]:
        if self.is_value:
            return ("spearman", "pearson")
        return tuple(reversed(retrieval.score_ranks([np.ones(1)])))  # the main score, mrr, is the last

    @property
    def is_value(self) -> bool:
        return self.objective == COSINE if self.graded is None else self.graded

    @property
    def needs_labels(self) -> bool:
        return self.objective == COSINE

    def collect_texts(self, examples: Sequence[VectorExample]) -> dict[str, list[Any]]:
        return {"text": [example.texts[0] for example in examples]}

    def named_answers(self, predictions: Array, examples: Sequence[VectorExample]) -> dict[str, list[Any]]:
        return {"vector": [row.tolist() for row in predictions]}

    # Learning.

    def make_examples(self, x: Any, y: Any) -> list[VectorExample]:
        return [VectorExample(str(number), (text,)) for number, text in enumerate(input_adapters.to_texts(x))]

    def make_training_examples(self, x: Any, y: Any) -> list[VectorExample]:
        """Creates examples of pairs, or of triplets (required for TRIPLET, optional for RANKING).

        Args:
            x: Two or three columns (a tuple or list), or rows of two or three texts (a list of tuples).
            y: Similarity scores of the pairs, or None.
        """
        fewest, most = (3, 3) if self.objective == TRIPLET else (2, 3 if self.objective == RANKING else 2)
        columns = input_adapters.to_columns(x, fewest, most)
        for place, column in enumerate(columns):
            empty = next((number for number, text in enumerate(column) if not text.strip()), None)
            if empty is not None:
                raise UserError(f"text {empty} in column {place} of x is empty; pass rows with a text in each column")
        scores: list[float | None] = [None] * len(columns[0])
        if y is not None:
            given = input_adapters.to_list(y, "y")
            input_adapters.check_same_length(len(columns[0]), given, "y")
            scores = [self.scale_score(value, f"y[{number}] is the score") for number, value in enumerate(given)]
        rows = zip(zip(*columns, strict=True), scores, strict=True)
        return [VectorExample(str(number), row, score) for number, (row, score) in enumerate(rows)]

    def featurize(self, examples: Sequence[VectorExample], tokenizer: FullTokenizer, max_seq_length: int) -> Features:
        """Tokenizes examples to the model's inputs: N sequences for each example of N texts."""
        number = len(examples[0].texts) if examples else 1
        parts = [text.rsplit(PAIR_SEPARATOR, 1) for example in examples for text in example.texts]
        is_pair = any(len(part) > 1 and part[1] for part in parts)
        rows = [TextExample("", first, (second[0] if second else "") if is_pair else None) for first, *second in parts]
        features = text_spec.featurize(rows, tokenizer, max_seq_length)
        if number == 1:
            return features
        scores = [example.score for example in examples]
        targets, details = {}, {}
        if not (self.needs_labels and None in scores):
            targets = {LABELS: np.array([0.0 if score is None else score for score in scores], self.target_dtype)}
        if self.objective == RANKING:
            different = [text for example in examples for text in example.texts]
            details[TEXTS] = np.unique(np.array(different, object), return_inverse=True)[1].reshape(-1, number)
        return features.group_rows(number, targets, details)

    # Predictions.

    def decode(self, outputs: Outputs, features: Features, examples: Sequence[VectorExample]) -> Array:
        return np.stack(outputs)

    def scores(self, predictions: Array, examples: Sequence[VectorExample]) -> dict[str, float]:
        """Returns correlations with similarity scores (graded examples), or scores of retrieval, by name.

        For each size in `dimensions`, the result also has the main score of the vectors' first components up to this
        size, such as mrr_of_64.
        """
        values = self._scores(predictions, examples)
        best = "spearman" if "spearman" in values else "mrr"
        shorter = {
            f"{best}_of_{size}": self._scores(predictions[..., :size], examples)[best] for size in self.dimensions
        }
        return values | shorter

    def _scores(self, predictions: Array, examples: Sequence[VectorExample]) -> dict[str, float]:
        if _are_graded(examples):
            cosines, expected = _cosines(predictions), np.array([example.score for example in examples])
            return {
                "spearman": score_functions.spearman(cosines, expected),
                "pearson": score_functions.pearson(cosines, expected),
            }
        values = retrieval.score_ranks(_Search(predictions, examples).ranks)
        if len(examples[0].texts) == 3:
            distances = np.linalg.norm(predictions[:, :1] - predictions[:, 1:], axis=-1)
            values["triplet_accuracy"] = float(np.mean(distances[:, 0] < distances[:, 1]))
        return values

    def outcomes(self, predictions: Array, examples: Sequence[VectorExample]) -> list[Outcome]:
        outcomes = []
        if _are_graded(examples):
            for cosine, example in zip(_cosines(predictions), examples, strict=True):
                expected, predicted = f"{example.score:.7g}", f"{cosine:.7g}"
                text = PAIR_SEPARATOR.join(example.texts[:2])
                outcomes.append(Outcome(text, expected, predicted, expected == predicted))
            return outcomes
        found = _Search(predictions, examples)
        for query, answers, nearest in zip(found.queries, found.answers, found.nearest, strict=True):
            expected = " / ".join(found.candidates[answer] for answer in answers)
            outcomes.append(Outcome(query, expected, found.candidates[nearest], nearest in answers))
        return outcomes


class _Search:
    """A search for the positive text of each anchor among the positives and negatives of all examples.

    Attributes:
        queries: The distinct anchors.
        candidates: The distinct positives and negatives.
        answers: For each query, the indices of its positives among the candidates.
        ranks: For each query, the ranks of its positives, from 1.
        nearest: For each query, the index of the nearest candidate.
    """

    def __init__(self, predictions: Array, examples: Sequence[VectorExample]) -> None:
        vectors = retrieval.normalize_vectors(predictions)
        queries: dict[str, Array] = {}  # the vectors by text
        candidates: dict[str, Array] = {}
        answers: dict[str, dict[str, None]] = {}  # by query, each text once
        for example, rows in zip(examples, vectors, strict=True):
            query, *others = example.texts
            queries.setdefault(query, rows[0])
            answers.setdefault(query, {})[others[0]] = None
            for text, row in zip(others, rows[1:], strict=True):
                candidates.setdefault(text, row)
        self.queries, self.candidates = list(queries), list(candidates)
        indices = {text: index for index, text in enumerate(candidates)}
        self.answers = [np.array([indices[text] for text in texts]) for texts in answers.values()]
        query_vectors, candidate_vectors = np.stack(list(queries.values())), np.stack(list(candidates.values()))
        self.ranks, self.nearest = retrieval.rank_answers(query_vectors, candidate_vectors, self.answers)


def _are_graded(examples: Sequence[VectorExample]) -> bool:
    return all(example.score is not None for example in examples)


def _cosines(predictions: Array) -> Array:
    """Returns the cosine between the first two vectors of each example, [E]."""
    vectors = retrieval.normalize_vectors(predictions)
    return np.asarray((vectors[:, 0] * vectors[:, 1]).sum(-1))
