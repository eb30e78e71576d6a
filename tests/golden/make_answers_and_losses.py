"""Makes tests/golden/answers_and_losses: losses of training, answers of the trained models, and public signatures.

    PYTHONPATH=. python tests/golden/make_answers_and_losses.py [fit.json] [finetune.json] [signatures.json]

- fit.json: for each class of models, the losses of `fit`, also after saving and loading, the answers of `predict`, and
  the answers of batch prediction by the export.
- finetune.json: for each task, the losses, scores and predictions of the command.
- signatures.json: the public names with their arguments.

The files were made with the code of commit 77560b1. After an intended change of what a file holds, run this script with
the name of that file, and give the reason in the commit message. Nothing here imports other parts of the tests, so that
the script also runs with the code of another commit: PYTHONPATH=CHECKOUT.
"""

import contextlib
import csv
import dataclasses
import functools
import inspect
import json
import os
import pathlib
import random
import re
import sys
import tempfile
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("OFFICIAL_BERT_TUNE_MALLOC", "0")

import keras

import official_bert
from official_bert.commands import FINETUNE
from official_bert.inference import batch_prediction, options

FOLDER = pathlib.Path(__file__).resolve().with_name("answers_and_losses")
FILES = ("fit.json", "finetune.json", "signatures.json")

VOCAB = """
[PAD] [UNK] [CLS] [SEP] [MASK] a b c d e f g h i j k l m n o p q r s t u v w x y z
##a ##b ##c ##d ##e ##f ##g ##h ##i ##j ##k ##l ##m ##n ##o ##p ##q ##r ##s ##t ##u ##v ##w ##x ##y ##z
the cat dog sat ran on mat in sun ##ing ##ed play walk and . , ? who un ##aff ##able
""".split()
CONFIG = {
    "vocab_size": len(VOCAB), "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 16, "max_position_embeddings": 32, "initializer_range": 0.4,
}  # fmt: skip
NOUNS, VERBS = ("cat", "dog", "mat", "sun", "unaffable"), ("sat", "ran", "played", "walking")
_FILLERS = ("the", "a", "in", "on", "and", ",")


def texts(count: int, seed: int, longest: int = 12) -> list[str]:
    """Returns random texts of one word or more. Some are longer than max_seq_length."""
    rng, words = random.Random(seed), (*_FILLERS, *NOUNS, *VERBS)
    return [" ".join(rng.choice(words) for _ in range(rng.randint(1, longest))) for _ in range(count)]


def noun_share(text: str) -> float:
    """Returns the share of nouns among the words of a text: the label of regressors."""
    words = text.split()
    return round(sum(word in NOUNS for word in words) / len(words), 3)


def label_text(text: str) -> str:
    return "noun" if noun_share(text) > 0.3 else "verb"


def find_nouns(text: str) -> list[str]:
    return [name for name in ("cat", "dog", "sun") if name in text.split()]


def tag_words(text: str) -> list[str]:
    return ["N" if word in NOUNS else "V" if word in VERBS else "O" for word in text.split()]


def find_answer(context: str) -> tuple[str, int] | None:
    """Returns the first noun of a context and its position, or None if the context has no noun."""
    return next(((word, context.find(word)) for word in context.split() if word in NOUNS), None)


def make_endings(text: str, seed: int) -> tuple[list[str], int]:
    """Returns four endings and the index of the right one, which has the largest share of nouns."""
    endings = texts(4, seed + len(text), 5)
    return endings, max(range(4), key=lambda number: noun_share(endings[number]))


TEXTS, ASKED = texts(18, 1), ["the cat", "unaffable dog and the sun .", *texts(1, 2), " ".join(texts(6, 3))]
SECOND, SECOND_ASKED = texts(18, 4, 6), texts(4, 5, 6)
QUESTIONS = [f"who {text} ?" for text in texts(18, 6, 3)]
QUESTIONS_ASKED = ["who sat ?", "who ?", "who ran on ?", "a ?"]
CONTEXTS = [" ".join(_FILLERS) if number % 3 == 2 else text for number, text in enumerate(texts(18, 7, 24))]
ENDINGS, ENDINGS_ASKED = [make_endings(text, 8) for text in TEXTS], [make_endings(text, 9)[0] for text in ASKED]
MASKED = ["the [MASK] sat", "a [MASK] ran [MASK] the sun", "[MASK]"]


@dataclasses.dataclass(frozen=True)
class Model:
    """A model, its training data and its test inputs.

    Attributes:
        class_name: Name of a public class.
        settings: Arguments of `from_checkpoint`.
        x: Inputs of `fit`, or None if the model is not trained.
        y: Labels for `fit`, or None if the model needs no labels.
        asked: Inputs of `predict`.
        compiled: Arguments of `compile`.
        frozen: Patterns of the layers to freeze.
        adam: Whether to train with Keras' Adam instead of BERT's optimizer.
        columns: Names of the inputs of the export, or () if the model is not exported.
    """

    class_name: str
    settings: dict[str, Any]
    x: Any
    y: Any
    asked: Any
    compiled: dict[str, Any] = dataclasses.field(default_factory=lambda: {"learning_rate": 2e-3, "jit_compile": False})
    frozen: tuple[str, ...] = ()
    adam: bool = False
    columns: tuple[str, ...] = ("text",)


_LABELS = list(map(label_text, TEXTS))
_CLASSIFIER = Model("TextClassifier", {"labels": ["noun", "verb"], "max_seq_length": 16}, TEXTS, _LABELS, ASKED)
_classifier = functools.partial(dataclasses.replace, _CLASSIFIER)
MODELS = {
    "classifier": _classifier(),
    "pairs": _classifier(
        settings={"labels": ["noun", "verb"], "pair": True}, x=(TEXTS, SECOND), asked=(ASKED, SECOND_ASKED),
        columns=("text", "text_pair"),
    ),
    "several": _classifier(
        settings={"labels": ["cat", "dog", "sun"], "multi_label": True}, y=list(map(find_nouns, TEXTS))
    ),
    "windows": _classifier(settings={"labels": ["noun", "verb"], "doc_stride": 3, "max_seq_length": 8}),
    "frozen": _classifier(compiled={"learning_rate": 2e-3}, frozen=("layer_0_.*", ".*embeddings"), columns=()),
    "adam": _classifier(adam=True, columns=()),
    "regressor": Model("TextRegressor", {"max_seq_length": 16}, TEXTS, list(map(noun_share, TEXTS)), ASKED),
    "tagger": Model(
        "TokenTagger", {"labels": ["N", "O", "V"], "max_seq_length": 12}, TEXTS, list(map(tag_words, TEXTS)), ASKED
    ),
    "answerer": Model(
        "QuestionAnswerer", {"max_seq_length": 20, "max_query_length": 8, "doc_stride": 6, "no_answer": True},
        (QUESTIONS, CONTEXTS), list(map(find_answer, CONTEXTS)), (QUESTIONS_ASKED, ASKED),
        columns=("question", "context"),
    ),
    "choice": Model(
        "MultipleChoice", {"max_seq_length": 16}, (TEXTS, [endings for endings, _ in ENDINGS]),
        [right for _, right in ENDINGS], (ASKED, ENDINGS_ASKED), columns=("prompt", "endings"),
    ),
    "masked_lm": Model("MaskedLM", {"max_seq_length": 16}, TEXTS, None, MASKED),
    "encoder": Model("TextEncoder", {"layers": [-1, -2], "pooling": "max"}, None, None, ASKED),
}  # fmt: skip
EPOCHS = 4  # of 5 steps each, or more if texts are split into windows


def fit(model: Any, case: Model, first_epoch: int = 0, epochs: int = EPOCHS) -> list[float]:
    """Trains in batches of similar length; returns the losses that Keras reports: the means over the epoch so far."""
    losses: list[float] = []
    if case.x is None:
        return losses
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: losses.append(float(logs["loss"])))
    settings = {"batch_size": 4, "initial_epoch": first_epoch, "epochs": epochs, "verbose": 0, "group_by_length": True}
    model.fit(case.x, **({} if case.y is None else {"y": case.y}), **settings, callbacks=[callback])
    return losses


def build(case: Model, folder: pathlib.Path) -> Any:
    """Returns a new, compiled model with the vocabulary that `write_files` wrote into the folder."""
    config, kind = official_bert.BertConfig(**CONFIG), getattr(official_bert, case.class_name)
    model = kind.from_checkpoint(config, vocab_file=str(folder / "vocab.txt"), **case.settings)
    if case.x is not None:
        if case.frozen:
            model.freeze(*case.frozen)
        adam = {"optimizer": keras.optimizers.Adam(2e-3), "jit_compile": False}
        model.compile(**(adam if case.adam else {**case.compiled, "adam_bias_correction": False}))
    return model


def predict_with_export(case: Model, export: pathlib.Path, folder: pathlib.Path) -> list[dict[str, Any]]:
    """Runs batch prediction with an export, in the folder, and returns the answers."""
    columns = case.asked if len(case.columns) > 1 else (case.asked,)
    rows = [dict(zip(case.columns, row, strict=True)) for row in zip(*columns, strict=True)]
    asked, answers = folder / "asked.jsonl", folder / "answers.jsonl"
    asked.write_text("".join(json.dumps(row) + "\n" for row in rows))
    batch_prediction.predict(options.BatchPredictionOptions(str(export), str(asked), str(answers)))
    return _read_lines(answers)


def fit_and_answer(name: str, folder: pathlib.Path) -> dict[str, Any]:
    """Trains, saves, loads and exports a model in the folder of `write_files`.

    Returns its losses and answers.
    """
    case = MODELS[name]
    model = build(case, folder)
    results: dict[str, Any] = {"fit": fit(model, case), "predict": to_json(model.predict(case.asked))}
    model.save(folder / f"{name}.keras")
    loaded = type(model).load(str(folder / f"{name}.keras"))
    results["fit after loading"] = fit(loaded, case, EPOCHS, EPOCHS + 1)
    if case.columns:
        model.export(str(folder / "exports" / name))
        results["export"] = predict_with_export(case, folder / "exports" / name, folder)
    return results


# Runs of the command.
_TABLE = "--task=table --train_file=train.jsonl --eval_file=dev.jsonl --predict_file=test.jsonl"
RUNS = {
    "classification": f"{_TABLE} --label_column=class",
    "pairs": f"{_TABLE} --label_column=class --text_pair_column=second",
    "windows": f"{_TABLE} --label_column=class --doc_stride=5",
    "multi_label": f"{_TABLE} --label_column=classes --label_kind=multi_label",
    "regression": f"{_TABLE} --label_column=number --label_kind=regression",
    "tagging": f"{_TABLE} --label_column=tags --label_kind=tagging",
    "squad_v2": "--task=squad_v2 --data_dir=squad --train_batch_size=3 --doc_stride=4 --max_query_length=5 "
    "--max_answer_length=4",
    "swag": "--task=swag --data_dir=swag",
    "codah": "--task=codah --data_dir=codah",
    "bilstm": f"{_TABLE} --label_column=class --head=bilstm --lstm_units=4",
}
_TRAINING = (
    "--do_train --init=bert_config.json --vocab_file=vocab.txt --max_seq_length=16 --train_batch_size=4 "
    "--num_train_epochs=4 --learning_rate=0.005 --log_steps=1 --random_seed=7 "
    "--noadam_bias_correction --group_by_length"
)


def finetune(name: str, folder: pathlib.Path) -> dict[str, Any]:
    """Runs the command in the current folder, where `write_files` wrote the data. Returns its log and predictions.

    CODAH's test part has labels, so it is scored.
    """
    predict = "" if name == "codah" else " --do_predict"
    FINETUNE.main(*FINETUNE.parse(f"{_TRAINING} {RUNS[name]} --output_dir={folder} --do_eval{predict}".split()))
    results, log = json.loads((folder / "results.json").read_text()), _read_lines(folder / "train.jsonl")
    files = sorted(path for path in folder.iterdir() if re.search("predictions|null_odds", path.name))
    return {
        "train": [{name: line[name] for name in ("loss", "learning_rate")} for line in log],
        "eval": list(map(_scores, _read_lines(folder / "eval.jsonl"))),
        "results": {part: _scores(scores) for part, scores in results.items() if isinstance(scores, dict)},
        "predictions": {path.name: _read_predictions(path) for path in files},
    }


def _read_lines(path: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _scores(values: dict[str, Any]) -> dict[str, Any]:
    """Drops checksums, scores per label, and thresholds, which are values of the null odds."""
    return {name: value for name, value in values.items() if not re.fullmatch("crc32|labels|.*_thresh", name)}


def _read_predictions(path: pathlib.Path) -> Any:
    """Returns the content of a file of predictions.

    Of the n best answers to a question, only the best text and the sorted probabilities remain, because rounding may
    swap answers that are equally probable.
    """
    if "nbest" in path.name:
        answers = json.loads(path.read_text()).values()
        return [{"text": each[0]["text"], "probability": [one["probability"] for one in each]} for each in answers]
    if path.suffix == ".json":
        return [[name, value] for name, value in json.loads(path.read_text()).items()]
    return [list(map(_word, line.replace(",", " ").split())) for line in path.read_text().splitlines()]


def _word(word: str) -> float | str:
    try:
        return float(word) if "." in word or "e" in word else word
    except ValueError:
        return word


def write_files(folder: pathlib.Path) -> None:
    """Writes the vocabulary, a configuration and the data of all runs."""
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    (folder / "bert_config.json").write_text(json.dumps(CONFIG))
    for name in ("squad", "swag", "codah"):
        (folder / name).mkdir()
    for part, count, seed in (("train", 20, 11), ("dev", 8, 12), ("test", 5, 13)):
        written = [", a ." if number % 4 == 3 else text for number, text in enumerate(texts(count, seed, 18))]
        rows = [
            {
                "text": text, "second": second, "class": label_text(text), "classes": ";".join(find_nouns(text)),
                "number": noun_share(text), "tags": tag_words(text),
            }
            for text, second in zip(written, texts(count, seed + 10, 6), strict=True)
        ]  # fmt: skip
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        _write_squad(folder / "squad" / f"{part}-v2.0.json", written)
        _write_choices(folder, part, [(text, *make_endings(text, seed)) for text in written])


def _write_squad(path: pathlib.Path, contexts: list[str]) -> None:
    paragraphs = []
    for number, context in enumerate(contexts):
        answers = [{"text": answer[0], "answer_start": answer[1]}] if (answer := find_answer(context)) else []
        question = {"id": f"q{number}", "question": "who ?", "answers": answers, "is_impossible": not answers}
        paragraphs.append({"context": context, "qas": [question]})
    path.write_text(json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}))


def _write_choices(folder: pathlib.Path, part: str, rows: list[tuple[str, list[str], int]]) -> None:
    with (folder / "swag" / f"{'val' if part == 'dev' else part}.csv").open("w", newline="") as file:
        header = ["sent1", "sent2", "ending0", "ending1", "ending2", "ending3", "label"]
        csv.writer(file).writerows([header, *([text, "the", *endings, right] for text, endings, right in rows)])
    lines = ["\t".join(["o", text, *endings, f"{right}\n"]) for text, endings, right in rows]
    (folder / "codah" / f"{part}.tsv").write_text("".join(lines))


# The classes that users import, and the methods whose arguments they give.
CLASSES = "TextClassifier TextRegressor TokenTagger QuestionAnswerer MultipleChoice MaskedLM TextEncoder".split()
METHODS = "__init__ from_checkpoint compile fit evaluate predict load save_checkpoint export freeze".split()
METHODS += "classify tag answer choose fill".split()


def _format_arguments(functions: list[Any]) -> str:
    """Returns the arguments of the first function, and of the next ones where it takes `**arguments` for them."""
    arguments: dict[str, inspect.Parameter] = {}
    for function in functions:
        parameters = inspect.signature(function).parameters.values()
        own = [each for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]
        for each in own:
            arguments.setdefault(each.name, each.replace(annotation=inspect.Parameter.empty))
        if len(own) == len(parameters):
            break
    return str(inspect.Signature(sorted(arguments.values(), key=lambda each: each.kind), __validate_parameters__=False))


def signatures() -> dict[str, str]:
    """Returns the arguments of the public functions, and of the public classes' methods that users call."""
    found = {}
    for name in sorted(set(official_bert.__all__) - {"__version__"}):
        value = getattr(official_bert, name)
        if not inspect.isclass(value):
            found[name] = _format_arguments([value])
            continue
        for method in METHODS if name in CLASSES else ("__init__",):
            owners = [each for each in value.__mro__ if each.__module__.startswith("official_bert.")]
            functions = [vars(owner)[method] for owner in owners if method in vars(owner)]
            if functions:
                found[f"{name}.{method}"] = _format_arguments([getattr(each, "__func__", each) for each in functions])
    return found


def to_json(value: Any) -> Any:
    """Converts arrays and dataclasses in answers to JSON values."""

    def default(each: Any) -> Any:
        return dataclasses.asdict(each) if dataclasses.is_dataclass(each) else each.tolist()

    return json.loads(json.dumps(value, default=default))


def make(file: str) -> dict[str, Any]:
    """Computes the content of a file."""
    if file == "signatures.json":
        return signatures()
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder = pathlib.Path(name)
        write_files(folder)
        if file == "fit.json":
            return {name: fit_and_answer(name, folder) for name in MODELS}
        return {name: finetune(name, folder / "runs" / name) for name in RUNS}


def read(file: str) -> Any:
    """Returns the content of a stored file."""
    return json.loads((FOLDER / file).read_text(encoding="utf-8"))


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for file in sys.argv[1:] or FILES:
        if file not in FILES:
            sys.exit(f"{file} is unknown; expected one or more of {', '.join(FILES)}")
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in make(file).items()]
        (FOLDER / file).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        print(f"{file}: {(FOLDER / file).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
