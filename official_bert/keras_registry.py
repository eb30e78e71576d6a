"""Our classes in Keras' registry before their modules are imported, so that Keras loads a file that names them.

Keras builds the objects of a .keras file from the classes that are registered, and imports no module of ours to find
them. Importing official_bert must not import Keras, which takes seconds. So a hook waits for Keras, and then registers
a stand-in for each class, which imports the class when Keras first builds one.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

PACKAGE = "official_bert"
# What is registered with Keras, by the module that does so when it is imported. Lower-case names are functions.
_NAMES = {
    "official_bert.keras_models.classification": "TextClassifier TextRegressor",
    "official_bert.keras_models.masked_lm": "MaskedLM",
    "official_bert.keras_models.multiple_choice": "MultipleChoice",
    "official_bert.keras_models.preprocessor": "Preprocessor",
    "official_bert.keras_models.question_answering": "QuestionAnswerer",
    "official_bert.keras_models.tagging": "TokenTagger",
    "official_bert.keras_models.text_encoder": "TextEncoder",
    "official_bert.modeling.bilstm": "BiLSTM",
    "official_bert.modeling.dropout": "Dropout",
    "official_bert.modeling.embeddings": "PositionEmbedding TokenTypeEmbedding WordEmbedding",
    "official_bert.modeling.encoder_block": "AttentionContext AttentionProbabilities",
    "official_bert.modeling.heads": "FirstPosition GatherPositions LastToken OutputBias",
    "official_bert.modeling.initialization": "gelu_exact gelu_tanh",
    "official_bert.modeling.task_models": "FoldChoices SpanLogits UnfoldChoices WithoutAxis",
    "official_bert.optimization.optimizers": "BertAdamW KerasAdamW Lamb LayerwiseAdamW",
    "official_bert.optimization.schedules": "PhasedSchedule WarmupPolynomialDecay",
    "official_bert.tasks.heads.losses": "SquaredError TaggingLoss WeightedBinaryCrossentropy",
    "official_bert.tasks.heads.metrics": "AbsoluteError MetricOfClasses TagAccuracy",
    "official_bert.tasks.heads.vector_losses": "CosineLoss RankingLoss TripletLoss",
}
MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}


def register_when_keras_is_imported() -> None:
    """Registers the stand-ins, now if Keras is there and otherwise as soon as it is imported."""
    if "keras" in sys.modules:
        _register(sys.modules["keras"])
    else:
        sys.meta_path.insert(0, _KerasHook())


def _register(keras: ModuleType) -> None:
    registry = keras.saving.get_custom_objects()
    for name, module in MODULE_OF.items():
        stand_in = _function_stand_in if name.islower() else _class_stand_in
        registry.setdefault(f"{PACKAGE}>{name}", stand_in(name, module))


def _class_stand_in(name: str, module: str) -> type:
    def from_config(config: dict[str, Any]) -> Any:
        return getattr(importlib.import_module(module), name).from_config(config)

    return type(name, (), {"from_config": staticmethod(from_config), "__module__": module})


def _function_stand_in(name: str, module: str) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        return getattr(importlib.import_module(module), name)(x)

    return function


class _KerasHook:
    """A finder on sys.meta_path that has `_register` called after Keras was imported, whoever imports it."""

    def __init__(self) -> None:
        self._searches = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> "ModuleSpec | None":
        if fullname != "keras" or self._searches:
            return None
        from importlib import util

        self._searches = True
        try:
            spec = util.find_spec(fullname)
        finally:
            self._searches = False
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenRegister(spec.loader)  # type: ignore[assignment]
        return spec


class _ThenRegister:
    """Loads a module by another loader, then registers the stand-ins."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # get_source, get_data and so on

    def create_module(self, spec: "ModuleSpec") -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _register(module)
