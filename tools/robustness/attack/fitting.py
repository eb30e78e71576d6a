"""Odd data, frames, numbers, losses, metrics for models that take text: a UserError, or the figures of plain ones."""

import contextlib
import inspect
import io
import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from official_bert.errors import UserError
from tools.robustness.attack.processes import NotHeldError

if TYPE_CHECKING:
    from tools.robustness.attack.campaign import Case

NEEDS = ()
_TEXTS, _CLASSES = ["the cat sat", "a dog ran", "the sun", "a mat and a cat"], [0, 2, 1, 2]
_NAMES, _LABELS = ["no", "yes", "b"], ["1", "3", "b"]  # of the latter none is known by its place
_ODD: list[Any] = [
    None, math.nan, math.inf, 1e39, -1, -5, 0, 0.5, 7, 10**30, "", "ab", b"\xff", [], {}, (), {"a": 1}, object(),
    [None], "nan", np.nan, np.array([]), np.zeros((2, 3, 4)), [[]], [[1, 1]], {1, 2}, 1j, "1.0", "balanced", True,
]  # fmt: skip
# Of Keras; of each the figure must be that of probabilities, where it is one of probabilities, or of logits.
_LOSSES = [
    "sparse_categorical_crossentropy", "SparseCategoricalCrossentropy", "crossentropy", "ce", "kl_divergence",
    "poisson", "categorical_crossentropy", "bce", "binary_focal_crossentropy", "categorical_focal_crossentropy",
    "dice", "mse",
]  # fmt: skip
_METRICS = [
    "accuracy", "acc", "sparse_categorical_crossentropy", "bce", "BinaryAccuracy", "Precision", "recall", "auc",
    "kl_divergence", "binary_crossentropy", "categorical_accuracy", "sparse_categorical_accuracy", "TruePositives",
]  # fmt: skip
_OF_LOGITS = {"mse"}


def attack(case: "Case") -> None:
    """Tries odd values, a loss or a metric, a column of labels, texts that are too long, or a table of few rows."""
    kinds = (_values, _figures, _labels, _frames, _cut_texts, _small_tables)
    kinds[case.number % len(kinds)](case)


def _model(several: Any = False, **arguments: Any) -> Any:
    import official_bert
    from tests.conftest import WORDS

    config = official_bert.BertConfig(len(WORDS), 8, 1, 2, 16, max_position_embeddings=16, initializer_range=0.5)
    settings = {"labels": _NAMES, "multi_label": several, "vocab": "\n".join(WORDS) + "\n", **arguments}
    return official_bert.TextClassifier(config, **settings)


def _values(case: "Case") -> None:
    rng = case.rng
    plain: dict[str, Any] = {
        "x": _TEXTS,
        "y": _CLASSES,
        "batch_size": 2,
        "sample_weight": [1.0] * 4,
        "class_weight": {0: 1.0},
    }
    method = rng.choice(["fit", "fit", "evaluate", "predict", "compile", "model"])
    names = {
        "fit": [*plain, "validation_split"], "evaluate": ["x", "y", "batch_size", "sample_weight"],
        "predict": ["x", "batch_size"],
        "compile": ["learning_rate", "warmup_proportion", "layer_decay"], "model": ["labels", "max_seq_length"],
    }[method]  # fmt: skip
    name, odd = rng.choice(names), rng.choice(_ODD)
    if isinstance(plain.get(name), list) and rng.random() < 0.5:
        odd = rng.sample([*plain[name][1:], odd], 4)
    case.what, case.done = f"{method}, {name}", f"{name}={odd!r}"
    arguments = {each: plain[each] for each in names if each in plain} | {name: odd}
    with warnings.catch_warnings(action="ignore"):
        try:
            if method == "model":
                _model(**arguments)
            elif method == "predict":
                answers = _model().predict(**arguments)
                _check(len(answers) == len(odd if name == "x" else _TEXTS), f"{len(answers)} answers")
            elif method == "compile":
                _model().compile(**arguments)
            else:
                _check_learning(_model(), method, arguments)
        except UserError as error:
            _check("\n" not in str(error), f"an error of several lines: {error}")


def _check_learning(model: Any, method: str, arguments: dict[str, Any]) -> None:
    before = model.get_weights()
    figures = getattr(model, method)(verbose=0, **arguments)
    if method == "fit":
        loss = figures.history["loss"][-1]
        _check(
            any(not np.array_equal(*pair) for pair in zip(before, model.get_weights(), strict=True)),
            "nothing is learned",
        )
    else:
        loss = figures[0]
    _check(0 <= loss < math.inf, f"the loss is {loss}")


def _figures(case: "Case") -> None:
    import keras

    from official_bert.tasks.heads.probabilities import softmax

    several, name = case.rng.random() < 0.5, case.rng.choice(["loss", "metric"])
    given = case.rng.choice(_LOSSES if name == "loss" else _METRICS)
    case.what, case.done = f"compile, {name}", f"{given!r}, several={several}"
    kind = getattr(keras, "losses" if name == "loss" else "metrics")
    reads_logits, is_categorical = given in _OF_LOGITS, "categorical" in given.lower()
    reference: Any = None
    if given not in ("crossentropy", "ce", "accuracy", "acc"):
        reference = kind.get(given)
        classes = [] if inspect.isfunction(reference) else [type(reference)]
        given = case.rng.choice([given, reference, *classes])
    model = _model(several)
    y = [[0], [2], [1], [0, 2]] if several else _CLASSES
    try:
        if name == "loss":
            model.compile("sgd", loss=given, metrics=[])
        else:
            model.compile("sgd", metrics=[given])
        data = model._evaluation_data((_TEXTS, y), 4)
        ((ids, targets),) = data.as_numpy_iterator()
        with warnings.catch_warnings(action="ignore"):
            figures = model.evaluate(data, verbose=0, return_dict=True)
    except UserError:
        return
    except (ValueError, TypeError) as error:  # Keras' own word of shapes that do not fit together
        words = ("hape", "rank", "dimension")
        _check(any(word in str(error) for word in words), f"{type(error).__name__}: {error}")
        return
    if reference is None:
        return
    logits = np.asarray(model(ids, training=False), np.float64)
    probabilities = logits if reads_logits else softmax(logits) if is_categorical else model.head.activated(logits)
    if name == "metric":
        fresh = type(reference).from_config(reference.get_config())
        fresh.update_state(targets, probabilities)
        expected, seen = float(fresh.result()), next(value for key, value in figures.items() if key != "loss")
    else:
        expected, seen = float(np.mean(reference(targets, probabilities))), figures["loss"]
    _check(math.isclose(expected, seen, rel_tol=1e-3, abs_tol=1e-4), f"{seen}, of probabilities {expected}")


def _labels(case: "Case") -> None:
    """Whole numbers with a point and without, in a table and in Python; a table is one for every command."""
    import tensorflow as tf

    from official_bert.inference import batch_prediction, feature_extraction
    from official_bert.tasks.heads.python_data import numbers_of
    from official_bert.tasks.options import TableOptions
    from official_bert.tasks.table import TableTask
    from official_bert.utils.bad_rows import BadRows

    rng = case.rng
    numbers = [rng.randrange(-3, 4) for _ in range(12)]
    names = [rng.choice([str(number), f"{number}.0", f"{number}.00"]) for number in numbers if number]
    ending, between = rng.choice([("csv", ","), ("tsv", "\t")])
    path = case.folder / f"a.{ending}"
    path.write_text(f"label{between}text\n" + "".join(f"{name}{between}the cat ||| sat\n" for name in names))
    case.what, case.done = f"labels, {ending}", " ".join(names)
    classes = sorted({number for number in numbers if number})
    if len(classes) < 2:
        return
    task = TableTask(TableOptions(train_file=str(path)))
    _check(task.head.labels == tuple(map(str, classes)), f"the classes are {task.head.labels}")
    seen = [example.label for example in task.read("train", BadRows())]
    _check(seen == numbers_of(names, task.head.labels or ()), f"Python and table differ: {seen}")
    in_data_set: Any = task.head.graph_labels(tf.TensorSpec([None], tf.string), True)
    _check(seen == in_data_set(tf.constant(names)).numpy().tolist(), f"data set and table differ: {seen}")
    texts = list(feature_extraction.read_texts(str(path), {}))
    rows = [[row["text"]] for row in batch_prediction.read_rows(str(path), ["text"])]
    _check(texts == rows, f"features reads {texts[:2]}, predict {rows[:2]}")


def _frames(case: "Case") -> None:
    """Columns of pandas, of odd types and indexes and with gaps, for lists: the same figures, or a UserError."""
    import pandas as pd

    rng = case.rng
    several = rng.random() < 0.3
    method = rng.choice(["fit", "evaluate", "predict"])
    types = ["object", "string[python]", "string[pyarrow]", "category"]
    index = rng.choice([[0, 1, 2, 3], [3, 1, 0, 2], [5, 5, 5, 5], list("abcd"), pd.date_range("2020", periods=4)])
    texts: list[Any] = list(_TEXTS)
    numbers, rows = list(_CLASSES), [[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]]
    gap = rng.choice(["", "", "x", "y", "sample_weight"])
    missing = rng.choice([None, math.nan, pd.NA, pd.NaT])
    place, kind_of_text = rng.randrange(4), rng.choice(types)
    if gap == "x":
        texts[place] = missing
    x: Any = pd.Series(texts, index=index, dtype=kind_of_text)
    if several:
        named = rng.sample(range(3), 3)
        y: Any = pd.DataFrame([[row[each] for each in named] for row in rows], index, [_LABELS[each] for each in named])
        kind_of_label = rng.choice(["int8", "Int64", "float32", "Float64", "bool", "boolean", "object"])
        y = y.astype(kind_of_label)
    elif rng.random() < 0.3:
        y, kind_of_label = pd.get_dummies(pd.Series([_LABELS[each] for each in numbers], index=index)), "dummies"
    else:
        kind_of_label = rng.choice(types)
        y = pd.Series([_LABELS[each] for each in numbers], index=index, dtype=kind_of_label)
    if gap == "y":
        y = y.astype(object)
        y = y.copy()
        y.iloc[(place, 0) if y.ndim == 2 else place] = missing
    kind_of_weight = "object" if missing is pd.NaT else rng.choice(["object", "Float64"])  # times are no Float64
    last_weight = missing if gap == "sample_weight" else 1.0
    weights = pd.Series([1.0, 2.0, 0.5, last_weight], index=index, dtype=kind_of_weight)
    x = x.to_frame() if rng.random() < 0.3 else x
    case.what = f"{method}, frames"
    case.done = (
        f"{kind_of_text}, {kind_of_label}, several={several}, index {list(index)!r:.40}, gap {missing!r} in {gap}"
    )
    frames = {"predict": (x,), "evaluate": (x, y, weights), "fit": (x, y, weights)}[method]
    plain = (_TEXTS, np.array(rows) if several else [_LABELS[each] for each in numbers], [1.0, 2.0, 0.5, 1.0])
    with warnings.catch_warnings(action="ignore"):
        try:
            seen = _figures_of(_model(several, labels=_LABELS), method, frames)
        except UserError as error:
            _check("\n" not in str(error), f"an error of several lines: {error}")
            _check(gap and (method != "predict" or gap == "x"), f"refused: {error}")
            return
        _check(not gap or (method == "predict" and gap != "x"), "a gap was taken for a value")
        expected = _figures_of(_model(several, labels=_LABELS), method, plain[: len(frames)])
    _check(np.array_equal(seen, expected), f"{seen}, of lists {expected}")


def _figures_of(model: Any, method: str, values: tuple[Any, ...]) -> Any:
    import keras

    keras.utils.set_random_seed(0)
    model.set_weights([np.random.default_rng(0).normal(0, 0.5, each.shape) for each in model.get_weights()])
    given = dict(zip(("x", "y", "sample_weight"), values, strict=False))
    figures = getattr(model, method)(**given, batch_size=2, **({} if method == "predict" else {"verbose": 0}))
    return figures.history["loss"] if method == "fit" else figures


def _cut_texts(case: "Case") -> None:
    """Texts that are too long for the model, in lists and data sets: the line on them has their number."""
    import tensorflow as tf

    rng = case.rng
    words = [rng.randrange(1, 30) for _ in range(rng.randrange(1, 9))]
    texts, labels = [" ".join(["cat"] * count) for count in words], [rng.randrange(3) for _ in words]
    method, epochs, batch_size = rng.choice(["fit", "evaluate"]), rng.randrange(1, 4), rng.randrange(1, 5)
    form, windows = rng.choice(["lists", "rows", "batches"]), rng.random() < 0.3
    model = _model(max_seq_length=16, pair=windows, doc_stride=4 if windows else None)
    case.what, case.done = f"{method}, long texts, {form}", f"{words}, {epochs=}, {batch_size=}, {windows=}"
    room = (16 - 3) // 2 if windows else 16 - 2  # of pairs in windows the first text has half of what there is
    cut = sum(count > room for count in words)
    x: Any = (texts, ["dog"] * len(texts)) if windows else texts
    given: tuple[Any, ...] = (x, labels)
    times = 1
    if form != "lists":
        data = tf.data.Dataset.from_tensor_slices((x, labels))
        given = (data if form == "rows" else data.batch(batch_size),)
        times = epochs if method == "fit" else 1
    settings = {"epochs": epochs} if method == "fit" else {}
    if form != "batches":
        settings["batch_size"] = batch_size
    with contextlib.redirect_stdout(io.StringIO()) as output:
        getattr(model, method)(*given, verbose=0, **settings)
    expected = f"{times * cut} of {times * len(words)} text"
    lines = [line for line in output.getvalue().splitlines() if "max_seq_length" in line]
    is_said = len(lines) == 1 and expected in lines[0]
    _check(is_said if cut else not lines, f"{lines}; expected {expected!r}")


def _small_tables(case: "Case") -> None:
    """The command on a table of fewer rows than a batch: the loss in its log is that of the rows."""
    import official_bert
    from official_bert.finetuning import runner
    from official_bert.finetuning.options import Options
    from official_bert.tasks.options import TableOptions
    from official_bert.utils.training_log import read_log
    from tests.conftest import WORDS

    rng = case.rng
    rows = [(rng.choice(_TEXTS), name) for name in ["good", "bad", *rng.choices(["good", "bad"], k=rng.randrange(9))]]
    batch_size = rng.randrange(len(rows), 40)
    case.what, case.done = "finetune, few rows", f"{len(rows)} rows in batches of {batch_size}"
    (case.folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (case.folder / "few.csv").write_text("text,label\n" + "".join(f"{text},{name}\n" for text, name in rows))
    config = official_bert.BertConfig(
        len(WORDS), 8, 1, 2, 16, max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    (case.folder / "config.json").write_text(config.to_json())
    options = Options(
        task="table", task_options=TableOptions(train_file=str(case.folder / "few.csv")), do_train=True,
        init=str(case.folder / "config.json"), vocab_file=str(case.folder / "vocab.txt"), max_seq_length=16,
        output_dir=str(case.folder / "run"), train_batch_size=batch_size, learning_rate=1e-12, num_train_epochs=1.0,
        log_steps=1,
    )  # fmt: skip
    runner.run(options)
    model = official_bert.TextClassifier.from_checkpoint(options.output_dir)
    texts, names = zip(*rows, strict=True)
    expected = model.evaluate(list(texts), list(names), verbose=0)[0]
    seen = [line["loss"] for line in read_log(options.output_dir, "train")]
    is_right = len(seen) == 1 and math.isclose(seen[0], expected, rel_tol=1e-3)
    _check(is_right, f"the losses are {seen}, of the rows {expected}")


def _check(is_right: Any, seen: str) -> None:
    if not is_right:
        raise NotHeldError(seen)
