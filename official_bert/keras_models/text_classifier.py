"""Texts or pairs of texts to classes.

B texts, C classes
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from official_bert.checkpoints import finetuned
from official_bert.errors import UserError
from official_bert.keras_models.text_model import TextModel
from official_bert.kinds import class_labels, input_adapters
from official_bert.kinds.classification.spec import NO_ANSWER, ClassificationSpec
from official_bert.kinds.label_spec import DECISIONS, LabelSpec
from official_bert.kinds.multi_label.spec import MultiLabelSpec
from official_bert.kinds.names import MEASURES
from official_bert.kinds.text_spec import TextExample, TextSpec
from official_bert.modeling.config import BertConfig


@keras.saving.register_keras_serializable(package="official_bert")
class TextClassifier(TextModel):
    """Classes of texts or of pairs of texts (paper, section 4.1).

    x is texts, or for pairs a tuple of two columns or rows of two texts; y is class names or numbers, and with
    multi_label lists of those. predict returns probabilities, float64 [B, C]; classify returns names.

    Args:
        config: the encoder's sizes.
        vocab: the text of its vocab.txt.
        labels: the classes' names, in the order of the logits.
        multi_label: whether a text may have several classes, or none.
        pair: whether an example is two texts.
        doc_stride: None cuts texts that are too long; a number reads them in windows, each that many tokens after the
            one before, and averages their logits.
        temperature: what logits are divided by before they become probabilities; `calibrate` finds it. It, the
            thresholds and min_confidence are attributes that can be set later too.
        thresholds: with multi_label, the probability above which classify names each class; 0.5 by default, and
            `choose_thresholds` finds better ones.
        positive_weights: with multi_label, how much more each class weighs in the loss where a text has it.
        min_confidence: without multi_label, the probability below which classify answers None.
        settings: as of TextModel.

    Raises:
        UserError: the labels are no names, or another argument has a value that cannot be.
    """

    head: TextSpec
    default_name = "text_classifier"
    kinds = (ClassificationSpec.kind, MultiLabelSpec.kind)

    def __init__(
        self,
        config: BertConfig | Mapping[str, Any],
        vocab: str,
        *,
        labels: Sequence[Any],
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
        common: dict[str, Any] = {
            "labels": names, "pair": pair, "doc_stride": doc_stride
        }  # fmt: skip
        head: LabelSpec = MultiLabelSpec(**common) if multi_label else ClassificationSpec(**common)
        if positive_weights is not None:
            _check_by_label(head, "positive_weights", positive_weights)
            weights: dict[str, Any] = {"positive_weights": tuple(positive_weights)}
            head = dataclasses.replace(head, **weights)
        decisions = {"temperature": temperature, "thresholds": thresholds, "min_confidence": min_confidence}
        for name, value in decisions.items():
            head = _with_decision(head, name, value)
        super().__init__(head, config, vocab, **settings)

    @property
    def temperature(self) -> float:
        """What logits are divided by before they become probabilities."""
        return self._label_head.temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        self.head = _with_decision(self._label_head, "temperature", value)

    @property
    def thresholds(self) -> tuple[float, ...] | None:
        """With multi_label, the probability above which classify names each class; None for 0.5."""
        return getattr(self.head, "thresholds", None) or None

    @thresholds.setter
    def thresholds(self, value: Sequence[float] | None) -> None:
        self.head = _with_decision(self._label_head, "thresholds", value)

    @property
    def min_confidence(self) -> float:
        """Without multi_label, the probability below which classify answers None."""
        return getattr(self.head, "min_confidence", 0.0)

    @min_confidence.setter
    def min_confidence(self, value: float) -> None:
        self.head = _with_decision(self._label_head, "min_confidence", value)

    def _own_config(self) -> dict[str, Any]:
        head = self.head
        return {
            "pair": head.pair,
            "doc_stride": head.doc_stride,
            "labels": list(head.labels or ()),
            "multi_label": not head.has_one_class,
            "positive_weights": list(getattr(head, "positive_weights", ())) or None,
            **{name: value for name, value in head.settings.items() if name in DECISIONS},
        }

    @classmethod
    def _settings_of(cls, spec: Mapping[str, Any]) -> dict[str, Any]:
        settings = {name: spec[name] for name in ("labels", "pair", "doc_stride") if name in spec}
        return settings | {"multi_label": spec["kind"] == MultiLabelSpec.kind}

    @classmethod
    def _settings_of_classifier(cls, labels: tuple[str, ...] | None, kind: str | None) -> dict[str, Any]:
        return {"multi_label": kind == MultiLabelSpec.kind} | ({"labels": labels} if labels else {})

    def _take_decisions(self, spec: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        decisions = {name: spec[name] for name in DECISIONS if name in spec and name not in given}
        if "thresholds" in decisions:  # of classes that may be in another order here
            threshold_of = dict(zip(spec["labels"], decisions["thresholds"], strict=True))
            decisions["thresholds"] = tuple(threshold_of[label] for label in self.head.labels or ())
        self.head = dataclasses.replace(self.head, **decisions)

    def classify(self, x: Any, batch_size: int | None = None) -> list[Any]:
        """Returns the name of each text's likeliest class, None where it is less probable than min_confidence.

        With multi_label it returns the names of all classes that are more probable than their thresholds.
        """
        answers = self.head.named_answers(self.predict(x, batch_size), [])
        if self.head.has_one_class:
            return [label if label != NO_ANSWER else None for label in answers["label"]]
        return [
            [label for label, chosen in zip(labels, row, strict=True) if chosen]
            for labels, row in zip(answers["labels"], answers["predicted"], strict=True)
        ]

    def calibrate(self, x: Any, y: Any, batch_size: int | None = None) -> float:
        """Finds the temperature at which labels are likeliest, keeps it in the model, and returns it.

        Args:
            x: texts that the model has not learned from.
            y: their classes, as of fit.
            batch_size: as of predict.
        """
        self.head = dataclasses.replace(self._label_head, temperature=1.0)
        self.head = self._label_head.calibrated(*self._predictions_and_examples(x, y, batch_size))
        return self._label_head.temperature

    def choose_thresholds(
        self, x: Any, y: Any, measure: str = MEASURES[0], batch_size: int | None = None
    ) -> dict[str, float]:
        """Finds the best threshold for each label, keeps them in the model, and returns them by label.

        Args:
            x: texts that the model has not learned from.
            y: their classes, as of fit.
            measure: "f1", "f0.5", "f2" or "accuracy", of each label by itself.
            batch_size: as of predict.

        Raises:
            UserError: the model gives one class, a label never occurs in y, or there is no such measure.
        """
        head = self.head
        if not isinstance(head, MultiLabelSpec):
            raise UserError("thresholds are of models with multi_label=True; with one class set min_confidence")
        if measure not in MEASURES:
            raise UserError(f"measure is {measure!r}; expected one of {', '.join(MEASURES)}")
        self.head = chosen = head.with_thresholds(*self._predictions_and_examples(x, y, batch_size), measure)
        return dict(zip(chosen.labels, chosen.thresholds, strict=True))

    @property
    def _label_head(self) -> LabelSpec:
        assert isinstance(self.head, LabelSpec)
        return self.head

    def _predictions_and_examples(self, x: Any, y: Any, batch_size: int | None) -> tuple[Any, list[TextExample]]:
        return self.predict(x, batch_size), self.head.examples(x, y)


def _check_by_label(head: LabelSpec, name: str, values: Any) -> None:
    if not isinstance(head, MultiLabelSpec) or len(values) != len(head.labels):
        raise UserError(
            f"{name} is {input_adapters.shown(values)}; expected a number for each of {len(head.labels)} labels, and "
            "multi_label=True"
        )


def _with_decision(head: LabelSpec, name: str, value: Any) -> LabelSpec:
    """Returns the head with another temperature, min_confidence or thresholds (None for one half).

    Raises:
        UserError: The head has no such decision, or the value is out of range.
    """
    if name == "thresholds" and value is None:
        return dataclasses.replace(head, thresholds=()) if isinstance(head, MultiLabelSpec) else head
    if name == "min_confidence" and isinstance(head, MultiLabelSpec):
        if value:
            raise UserError(f"min_confidence is {value}; with multi_label expected thresholds in its place")
        return head
    if name == "thresholds":
        value = [input_adapters.as_number(each) for each in input_adapters.as_list(value, name)]
        _check_by_label(head, name, value)
    else:
        value = input_adapters.as_number(value)
    finetuned.check_setting(name, value)
    settings: dict[str, Any] = {name: tuple(value) if name == "thresholds" else value}
    return dataclasses.replace(head, **settings)
