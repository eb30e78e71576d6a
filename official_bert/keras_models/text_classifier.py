"""A Keras model that classifies texts or text pairs.

B texts, C classes
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from official_bert.checkpoints.formats import finetuned
from official_bert.errors import UserError
from official_bert.keras_models.fitting_model import FittingModel
from official_bert.kinds import class_labels, input_adapters
from official_bert.kinds.classification.spec import NO_ANSWER, ClassificationSpec
from official_bert.kinds.multi_label.spec import MultiLabelSpec
from official_bert.kinds.names import MEASURES, parse_measure
from official_bert.kinds.text_spec import LabelSpec, TextExample
from official_bert.modeling.config import BertConfig


@keras.saving.register_keras_serializable(package="official_bert")
class TextClassifier(FittingModel):
    """Classifies texts or text pairs (paper, section 4.1).

    x contains texts. For pairs, x is a tuple of two lists of texts, or a list of (text, text) rows. y contains class
    names or indices, or lists of them with multi_label=True. predict returns probabilities, float64 [B, C], and
    `classify` returns names. You can change temperature, thresholds and min_confidence later through the attributes.

    Args:
        config: Sizes of the encoder: a BertConfig or a dict of its fields.
        vocab: Contents of the model's vocab.txt.
        labels: Names of the classes, in the order of the logits. Defaults to None: `fit` takes the sorted labels of y.
        multi_label: Whether a text may have several classes or none.
        pair: Whether an example consists of two texts.
        doc_stride: Number of tokens between the starts of two windows of a long text, whose logits are averaged.
            Defaults to None, which truncates long texts.
        temperature: Divisor of the logits before the softmax or sigmoid. `calibrate` finds the best value.
        thresholds: For each class, the probability above which `classify` returns it. Defaults to 0.5. With
            multi_label=False they are for two classes and must add up to 1. `choose_thresholds` finds better values.
        positive_weights: For each class, the weight in the loss of the texts that have it, for multi_label=True.
            Defaults to 1.
        min_confidence: Probability below which `classify` returns None, for multi_label=False.
        settings: Other arguments of TextModel.

    Raises:
        UserError: If the labels are not names, or another argument is out of range.
    """

    spec: LabelSpec
    default_name = "text_classifier"
    kinds = (ClassificationSpec.kind, MultiLabelSpec.kind)

    def __init__(
        self,
        config: BertConfig | Mapping[str, Any],
        vocab: str,
        *,
        labels: Sequence[Any] | None = None,
        multi_label: bool = False,
        pair: bool = False,
        doc_stride: int | None = None,
        temperature: float = 1.0,
        thresholds: Sequence[float] | None = None,
        positive_weights: Sequence[float] | None = None,
        min_confidence: float = 0.0,
        **settings: Any,
    ) -> None:
        names = class_labels.check_label_names(labels, least=1 if multi_label else 2, settings=settings)
        spec_class: type[LabelSpec] = MultiLabelSpec if multi_label else ClassificationSpec
        spec = spec_class(labels=names, pair=pair, doc_stride=doc_stride)
        if positive_weights is not None:
            _check_by_label(spec, "positive_weights", positive_weights)
            weights: dict[str, Any] = {"positive_weights": tuple(positive_weights)}
            spec = dataclasses.replace(spec, **weights)
        super().__init__(spec, config, vocab, **settings)
        self.temperature, self.thresholds, self.min_confidence = temperature, thresholds, min_confidence

    @property
    def temperature(self) -> float:
        """Divisor of the logits before the softmax or sigmoid."""
        return self.spec.temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        self._set_number("temperature", value)

    @property
    def thresholds(self) -> tuple[float, ...] | None:
        """For each class, the probability above which `classify` returns it. None means 0.5."""
        return self.spec.thresholds or None

    @thresholds.setter
    def thresholds(self, value: Sequence[float] | None) -> None:
        thresholds: list[float] = []
        if value is not None:
            thresholds = [input_adapters.to_number(each) for each in input_adapters.to_list(value, "thresholds")]
            _check_by_label(self.spec, "thresholds", thresholds)
        finetuned.check_setting("thresholds", thresholds)
        self.spec = dataclasses.replace(self.spec, thresholds=tuple(thresholds))

    @property
    def min_confidence(self) -> float:
        """Probability below which `classify` returns None, for multi_label=False."""
        return getattr(self.spec, "min_confidence", 0.0)

    @min_confidence.setter
    def min_confidence(self, value: float) -> None:
        if self.spec.is_single_label:
            self._set_number("min_confidence", value)
        elif value:
            raise UserError(f"min_confidence is {value}, but multi_label=True; pass thresholds instead")

    def _set_number(self, name: str, value: Any) -> None:
        number: Any = input_adapters.to_number(value)
        finetuned.check_setting(name, number)
        self.spec = dataclasses.replace(self.spec, **{name: number})

    def _replace_labels(self, labels: tuple[str, ...]) -> Any:
        spec = super()._replace_labels(labels)
        for name in ("thresholds", "positive_weights"):
            if getattr(spec, name, ()):
                _check_by_label(spec, name, getattr(spec, name))
        return spec

    def _get_own_config(self) -> dict[str, Any]:
        decision_settings = self.spec.select_decision_settings(self.spec.settings)
        positive_weights = list(getattr(self.spec, "positive_weights", ())) or None
        return super()._get_own_config() | {"positive_weights": positive_weights, **decision_settings}

    @classmethod
    def _get_settings(cls, task_spec: Mapping[str, Any]) -> dict[str, Any]:
        settings = super()._get_settings(task_spec) | {"multi_label": task_spec["kind"] == MultiLabelSpec.kind}
        return {name: value for name, value in settings.items() if name not in ClassificationSpec.decision_settings}

    def _copy_decision_settings(self, task_spec: Mapping[str, Any], explicit: Mapping[str, Any]) -> None:
        inherited = {name: task_spec[name] for name in task_spec.keys() - explicit.keys()}
        copied = self.spec.select_decision_settings(inherited)
        if "thresholds" in copied:  # The order of the classes may be different here.
            threshold_of = dict(zip(task_spec["labels"], copied["thresholds"], strict=True))
            copied["thresholds"] = tuple(threshold_of[label] for label in self.spec.labels or ())
        self.spec = dataclasses.replace(self.spec, **copied)

    def classify(self, x: Any, batch_size: int | None = None) -> list[Any]:
        """Returns the most probable class of each text, or None if its probability is below min_confidence.

        With multi_label=True, returns a list of all classes whose probability is above their threshold.
        """
        answers = self.spec.named_answers(self.predict(x, batch_size), [])
        if self.spec.is_single_label:
            return [label if label != NO_ANSWER else None for label in answers["label"]]
        return [
            [label for label, chosen in zip(labels, row, strict=True) if chosen]
            for labels, row in zip(answers["labels"], answers["predicted"], strict=True)
        ]

    def calibrate(self, x: Any, y: Any, batch_size: int | None = None) -> float:
        """Sets the temperature to the value that maximizes the likelihood of the labels, and returns it.

        Args:
            x: Texts that the model was not trained on.
            y: Their labels, as in `fit`.
            batch_size: Number of texts per batch. Defaults to 32.
        """
        self.spec = dataclasses.replace(self.spec, temperature=1.0)
        self.spec = self.spec.fit_temperature(*self._predictions_and_examples(x, y, batch_size))
        return self.spec.temperature

    def choose_thresholds(
        self, x: Any, y: Any, measure: str = MEASURES[0], batch_size: int | None = None
    ) -> dict[str, float]:
        """Sets the threshold of each class to the value with the best score, and returns the thresholds by class name.

        With multi_label=False, there must be two classes. The score is then computed for the class that is rarer in y.

        Args:
            x: Texts that the model was not trained on.
            y: Their labels, as in `fit`.
            measure: Score to maximize: "f1", "f0.5", "f2", "accuracy", "balanced_accuracy", "precision=0.9" (the best
                recall with at least this precision) or "recall=0.9" (the best precision with at least this recall).
            batch_size: Number of texts per batch. Defaults to 32.

        Raises:
            UserError: If the model has three or more classes and multi_label=False, a class does not occur in y, the
                measure is unknown, or no threshold reaches the precision.
        """
        parse_measure(measure)
        spec = self.spec.choose_thresholds(*self._predictions_and_examples(x, y, batch_size), measure)
        self.spec = spec
        return dict(zip(spec.labels, spec.thresholds, strict=True))

    def _predictions_and_examples(self, x: Any, y: Any, batch_size: int | None) -> tuple[Any, list[TextExample]]:
        return self.predict(x, batch_size), self.spec.make_examples(x, y)


def _check_by_label(spec: LabelSpec, name: str, values: Any) -> None:
    is_multi_label = isinstance(spec, MultiLabelSpec)
    adds_up = name == "thresholds" and math.isclose(sum(values), 1.0, abs_tol=1e-6)
    if len(values) != len(spec.labels) or not (is_multi_label or adds_up):
        shown = input_adapters.format_value(values)
        rest = "" if is_multi_label else ", which add up to 1" if name == "thresholds" else ", and multi_label=True"
        raise UserError(f"{name} is {shown}; expected a number for each of {len(spec.labels)} labels{rest}")
