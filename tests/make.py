"""Builders shared by the tests of several packages."""

import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from official_bert.errors import UserError

if TYPE_CHECKING:
    import keras

    from official_bert.kinds.features import Features
    from official_bert.kinds.text_spec import TextExample
    from official_bert.modeling.config import BertConfig

ROOT = pathlib.Path(__file__).parent.parent

WORDS = """
[PAD] [UNK] [CLS] [SEP] [MASK] a b c d e f g h i j k l m n o p q r s t u v w x y z
##a ##b ##c ##d ##e ##f ##g ##h ##i ##j ##k ##l ##m ##n ##o ##p ##q ##r ##s ##t ##u ##v ##w ##x ##y ##z
the cat dog sat ran on mat in sun ##ing ##ed play walk and . , ! ? un ##aff ##able
""".split()
VOCAB = "\n".join(WORDS) + "\n"


def slow_after(count: int, values: Iterable[Any]) -> list[Any]:
    """Returns parameters of a test. All after the first `count` are marked slow."""
    return [
        pytest.param(*(value if type(value) is tuple else (value,)), marks=[pytest.mark.slow] if index >= count else [])
        for index, value in enumerate(values)
    ]


def tiny_config(**changes: Any) -> "BertConfig":
    """Returns the configuration of a model that runs in milliseconds."""
    from official_bert.modeling.config import BertConfig  # here, since it imports TensorFlow

    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    return BertConfig(**{"vocab_size": len(WORDS), "max_position_embeddings": 32, **sizes, **changes})


def build_task_model(
    kind: str, encoder: "keras.Model", num_labels: int, num_choices: int = 4, seed: int | None = None, **settings: Any
) -> "keras.Model":
    """Returns an encoder with the head of a kind. `settings` are passed to the spec of the kind."""
    from official_bert.kinds.all_kinds import SPECS  # here, since they import TensorFlow
    from official_bert.kinds.model import create_kind_model

    spec = SPECS[kind](labels=tuple(map(str, range(num_labels))), num_choices=num_choices, **settings)
    return create_kind_model(spec).build(encoder, seed)


def build_text_model(
    class_name: str = "TextClassifier", config: "BertConfig | None" = None, vocab: str = VOCAB, **settings: Any
) -> Any:
    """Returns a small Keras model that takes text. Classifiers and taggers have the labels a and b by default."""
    import official_bert  # here, since it imports TensorFlow

    if class_name in ("TextClassifier", "TokenTagger"):
        settings.setdefault("labels", ["a", "b"])
    return getattr(official_bert, class_name)(config or tiny_config(num_hidden_layers=1), vocab, **settings)


def make_examples(*labels: Any) -> "list[TextExample]":
    """Returns examples of empty texts with these labels."""
    from official_bert.kinds.text_spec import TextExample  # here, so that few tests import it

    return [TextExample("", "", None, label) for label in labels]


def compile_eagerly(model: Any, *arguments: Any, **settings: Any) -> Any:
    """Compiles a model so that it runs without a graph, which is faster for a few texts, and returns it."""
    model.compile(*arguments, run_eagerly=True, **settings)
    return model


def skip_steps(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets fit and evaluate read their batches, but compute nothing."""
    for step in ("train_step", "test_step", "get_metrics_result"):
        monkeypatch.setattr(model, step, lambda *data: {"loss": 0.0})


def list_weights(model: "keras.Model") -> dict[str, np.ndarray]:
    """Returns copies of a model's weights by path."""
    return {variable.path: np.array(variable) for variable in model.variables}


def assert_equal_weights(one: "keras.Model", other: "keras.Model", atol: float = 0.0) -> None:
    for variable, expected in zip(one.variables, other.variables, strict=True):
        np.testing.assert_allclose(variable, expected, rtol=0, atol=atol, err_msg=variable.path)


def write_text(path: pathlib.Path, text: str | bytes) -> str:
    """Writes a file as UTF-8, without changing line endings, and returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def write_vocab(path: pathlib.Path, tokens: Iterable[str] = WORDS) -> str:
    """Writes a vocabulary file and returns its path."""
    return write_text(path, "".join(f"{token}\n" for token in tokens))


def write_rows(path: pathlib.Path, rows: Iterable[dict[str, Any]]) -> str:
    """Writes rows as JSON lines and returns the path."""
    return write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def write_manifest(stem: pathlib.Path, counts: dict[str, int], vocab_file: str, **flags: object) -> None:
    """Writes the manifest of record files, given the number of records in each."""
    from official_bert.data import manifest  # here, so that few tests import it
    from official_bert.utils import files

    figures = ((os.path.basename(path), count, files.size(path), files.sha256(path)) for path, count in counts.items())
    source = {"flags": flags, "vocabulary": files.sha256(vocab_file)}
    found = manifest.Manifest(source, [manifest.Shard(*each) for each in figures], {})
    manifest.write_manifests(list(counts), str(stem), found)


def write_run(folder: pathlib.Path, model: "keras.Model", config: "BertConfig", vocab_file: str) -> str:
    """Writes the folder of a pre-training run with one checkpoint of the model's weights, and returns its path."""
    from official_bert.checkpoints import model_files, run_checkpoints  # here, since they import TensorFlow
    from official_bert.checkpoints.checkpoint import LoadedModel

    described = LoadedModel(config, {}, pathlib.Path(vocab_file).read_text())
    model_files.write_model_files(str(folder), model_files.format_model_files(described))
    run_checkpoints.RunCheckpoints(str(folder), {"model": model.variables}, keep=1).save(0)
    return str(folder)


def add_attention_weight(monkeypatch: pytest.MonkeyPatch) -> str:
    """Lets the attention layers of new models have one more weight, and returns its path in the first block."""
    from official_bert.modeling.encoder_block import AttentionProbabilities

    monkeypatch.setattr(
        AttentionProbabilities, "build", lambda layer, _: layer.add_weight(shape=(3, 4), name="distance_bias")
    )
    return "layer_0_attention_probabilities/distance_bias"


def flip_bits(path: str | pathlib.Path, offset: int, bits: int = 1) -> None:
    """Damages one byte of a file."""
    content = bytearray(pathlib.Path(path).read_bytes())
    content[offset] ^= bits
    pathlib.Path(path).write_bytes(content)


def refusal(function: Callable[..., object], *arguments: Any, **keywords: Any) -> str:
    """Returns the message of the UserError that a call raises."""
    with pytest.raises(UserError) as caught:
        function(*arguments, **keywords)
    return str(caught.value)


def assert_mentions(message: str, *names: object) -> None:
    """Checks that a message contains each name (a flag, a value, a file, a line or a limit) as a whole word."""
    for name in names:
        assert re.search(rf"(?<!\w)(?<!\d[.,]){re.escape(str(name))}(?![.,]?\w)", message), (name, message)


def assert_rejected(names: object, function: Callable[..., object], *arguments: Any, **keywords: Any) -> None:
    """Checks that a call raises a UserError that mentions a name, or each name of a tuple."""
    message = refusal(function, *arguments, **keywords)
    assert_mentions(message, *(names if isinstance(names, tuple) else (names,)))


def run_python(
    *arguments: str | pathlib.Path,
    folder: pathlib.Path = ROOT,
    environment: dict[str, str | None] | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Runs Python in another process, in which this repository can be imported, and returns its output.

    Args:
        arguments: Such as "-c" and code, or "-m" and a module.
        folder: Its working directory.
        environment: Changes of environment variables. None removes a variable.
        options: Further arguments of subprocess.run.
    """
    changed = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
    variables = {name: value for name, value in changed.items() if value is not None}
    settings = {"cwd": folder, "env": variables, "capture_output": True, "text": True, "check": False, **options}
    return subprocess.run([sys.executable, *arguments], **settings)


def list_rows(features: "Features", windows: Sequence[Any]) -> list[types.SimpleNamespace]:
    """Returns windows with the ids, the segments and the targets of their rows."""
    rows = []
    for number, (window, (first, last)) in enumerate(zip(windows, itertools.pairwise(features.splits), strict=True)):
        ids, segment_ids = features.input_ids[first:last].tolist(), features.segment_ids[first:last].tolist()
        targets = {name: values[number] for name, values in features.targets.items() if len(values) == len(windows)}
        rows.append(types.SimpleNamespace(**window._asdict(), input_ids=ids, segment_ids=segment_ids, **targets))
    return rows
