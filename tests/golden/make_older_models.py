"""Makes tests/golden/older_models with the code of commit 62893e8, and no other: what users of that day have on disk.

    PYTHONPATH=CHECKOUT_OF_62893e8 python tests/golden/make_older_models.py

Fine-tuning, the models of text and their exports may change as they like, as long as they still read these files, give
the same answers, learn by the same losses and take the same arguments. The tests take from here what was learned and
what was asked; nothing here depends on the rest of the tests, so that it runs beside older code.
"""

import contextlib
import csv
import dataclasses
import inspect
import json
import os
import pathlib
import random
import shutil
import signal
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("OFFICIAL_BERT_TUNE_MALLOC", "0")

import keras

import official_bert
from official_bert.commands import FINETUNE
from official_bert.inference import batch_prediction
from official_bert.inference.options import BatchPredictionOptions

FOLDER = pathlib.Path(__file__).with_name("older_models")

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
    """Texts of one word and more; some are longer than what the models read at once."""
    rng = random.Random(seed)
    words = (*_FILLERS, *NOUNS, *VERBS)
    return [" ".join(rng.choice(words) for _ in range(rng.randint(1, longest))) for _ in range(count)]


def number_of(text: str) -> float:
    """What regressors learn: how many nouns a text has for each of its words."""
    words = text.split()
    return round(sum(word in NOUNS for word in words) / len(words), 3)


def class_of(text: str) -> str:
    return "noun" if number_of(text) > 0.3 else "verb"


def classes_of(text: str) -> list[str]:
    return [name for name in ("cat", "dog", "sun") if name in text.split()]


def tags_of(text: str) -> list[str]:
    return ["N" if word in NOUNS else "V" if word in VERBS else "O" for word in text.split()]


def answer_of(context: str) -> tuple[str, int] | None:
    """The first noun of a context, and where it begins."""
    return next(((word, context.find(word)) for word in context.split() if word in NOUNS), None)


def endings_of(text: str, seed: int) -> tuple[list[str], int]:
    """Four endings, of which the one with most nouns is the right one."""
    endings = texts(4, seed + len(text), 5)
    return endings, max(range(4), key=lambda number: number_of(endings[number]))


TEXTS, ASKED = texts(18, 1), ["the cat", "unaffable dog and the sun .", *texts(1, 2), " ".join(texts(6, 3))]
SECOND, SECOND_ASKED = texts(18, 4, 6), texts(4, 5, 6)
QUESTIONS, QUESTIONS_ASKED = (
    [f"who {text} ?" for text in texts(18, 6, 3)],
    ["who sat ?", "who ?", "who ran on ?", "a ?"],
)
CONTEXTS = [" ".join(_FILLERS) if number % 3 == 2 else text for number, text in enumerate(texts(18, 7, 24))]
ENDINGS, ENDINGS_ASKED = [endings_of(text, 8) for text in TEXTS], [endings_of(text, 9)[0] for text in ASKED]
MASKED = ["the [MASK] sat", "a [MASK] ran [MASK] the sun", "[MASK]"]


@dataclasses.dataclass(frozen=True)
class Model:
    """A model of text: how it is made and trained, and what it is asked.

    Attributes:
        class_name: a public class.
        settings: of `from_checkpoint`.
        x: to fit and, where y is None and it does not learn, nothing.
        y: labels.
        asked: for predict.
        compiled: arguments of `compile`.
        frozen: patterns of layers that stay as they are.
        adam: whether it learns by a user's optimizer, whose state is saved.
    """

    class_name: str
    settings: dict[str, Any]
    x: Any
    y: Any
    asked: Any
    compiled: dict[str, Any] = dataclasses.field(default_factory=lambda: {"learning_rate": 2e-3, "jit_compile": False})
    frozen: tuple[str, ...] = ()
    adam: bool = False


def _classifier(**changes: Any) -> Model:
    classifier = Model(
        "TextClassifier", {"labels": ["noun", "verb"], "max_seq_length": 16}, TEXTS, list(map(class_of, TEXTS)), ASKED
    )
    return dataclasses.replace(classifier, **changes)


MODELS = {
    "classifier": _classifier(),
    "pairs": _classifier(
        settings={"labels": ["noun", "verb"], "pair": True}, x=(TEXTS, SECOND), asked=(ASKED, SECOND_ASKED)
    ),
    "several": _classifier(
        settings={"labels": ["cat", "dog", "sun"], "multi_label": True}, y=list(map(classes_of, TEXTS))
    ),
    "windows": _classifier(settings={"labels": ["noun", "verb"], "doc_stride": 3, "max_seq_length": 8}),
    "frozen": _classifier(compiled={"learning_rate": 2e-3}, frozen=("layer_0_.*", ".*embeddings")),
    "adam": _classifier(adam=True),
    "regressor": Model("TextRegressor", {"max_seq_length": 16}, TEXTS, list(map(number_of, TEXTS)), ASKED),
    "tagger": Model(
        "TokenTagger", {"labels": ["N", "O", "V"], "max_seq_length": 12}, TEXTS, list(map(tags_of, TEXTS)), ASKED
    ),
    "answerer": Model(
        "QuestionAnswerer", {"max_seq_length": 20, "max_query_length": 8, "doc_stride": 6, "no_answer": True},
        (QUESTIONS, CONTEXTS), list(map(answer_of, CONTEXTS)), (QUESTIONS_ASKED, ASKED),
    ),
    "choice": Model(
        "MultipleChoice", {"max_seq_length": 16}, (TEXTS, [endings for endings, _ in ENDINGS]),
        [right for _, right in ENDINGS], (ASKED, ENDINGS_ASKED),
    ),
    "masked_lm": Model("MaskedLM", {"max_seq_length": 16}, TEXTS, None, MASKED),
    "encoder": Model("TextEncoder", {"layers": [-1, -2], "pooling": "max"}, None, None, ASKED),
}  # fmt: skip
EPOCHS = 4  # of 5 steps, or of some more where texts are read in windows


class _Losses(keras.callbacks.Callback):
    """Keeps the loss after each batch: as Keras shows it, the mean of the epoch so far."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(float(logs["loss"]))


def fitted(model: Any, case: Model, first_epoch: int = 0, epochs: int = EPOCHS) -> list[float]:
    """Trains a model; returns the losses."""
    callback = _Losses()
    y = {} if case.y is None else {"y": case.y}
    model.fit(
        case.x, **y, batch_size=4, initial_epoch=first_epoch, epochs=epochs, verbose=0, callbacks=[callback]
    )  # fmt: skip
    return callback.losses


def built(case: Model, folder: pathlib.Path) -> Any:
    """Returns a new model, compiled; the folder is to hold `write_files`' vocabulary."""
    config = official_bert.BertConfig(**CONFIG)
    kind = getattr(official_bert, case.class_name)
    model = kind.from_checkpoint(config, vocab_file=str(folder / "vocab.txt"), **case.settings)
    if case.x is not None:
        if case.frozen:
            model.freeze(*case.frozen)
        optimizer = {"optimizer": keras.optimizers.Adam(2e-3), "jit_compile": False} if case.adam else case.compiled
        model.compile(**optimizer)
    return model


# What is exported, and the inputs of batch prediction: columns, each of a text or a list for a row.
EXPORTS: dict[str, dict[str, Any]] = {
    "classifier": {"text": ASKED},
    "pairs": {"text": ASKED, "text_pair": SECOND_ASKED},
    "several": {"text": ASKED},
    "windows": {"text": ASKED},
    "regressor": {"text": ASKED},
    "tagger": {"text": ASKED},
    "answerer": {"question": QUESTIONS_ASKED, "context": ASKED},
    "choice": {"prompt": ASKED, "endings": ENDINGS_ASKED},
    "masked_lm": {"text": MASKED},
    "encoder": {"text": ASKED},
}


def answers_of_export(name: str, export: pathlib.Path, folder: pathlib.Path) -> list[dict[str, Any]]:
    """Returns what an export answers in batch prediction, whose files are written to the folder."""
    columns = EXPORTS[name]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    asked, answers = folder / f"{name}.jsonl", folder / f"{name}.answers.jsonl"
    asked.write_text("".join(json.dumps(row) + "\n" for row in rows))
    batch_prediction.predict(BatchPredictionOptions(str(export), str(asked), str(answers)))
    return [json.loads(line) for line in answers.read_text().splitlines()]


# Runs of the command. Paths are relative, since a run that goes on wants them as they were. All batches are full: that
# code divided the loss of a smaller last one by the rows of the others, where fit divided it by its own.
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
STOPPED, STOPPED_AT = "tagging", 14
_TRAINING = (
    "--do_train --init=bert_config.json --vocab_file=vocab.txt --max_seq_length=16 --train_batch_size=4 "
    "--num_train_epochs=4 --learning_rate=0.005 --log_steps=1 --random_seed=7"
)


def run(name: str, output_dir: str, train: bool) -> None:
    """Runs the command in the current folder, which is to hold `write_files`' data; with train=False on what is there.

    Codah's test part has labels, so it is scored.
    """
    predict = "" if name == "codah" else " --do_predict"
    arguments = f"{_TRAINING if train else ''} {RUNS[name]} --output_dir={output_dir} --do_eval{predict}"
    FINETUNE.main(*FINETUNE.parse(arguments.split()))


def write_files(folder: pathlib.Path) -> None:
    """Writes the vocabulary, a configuration and the data of all runs."""
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    (folder / "bert_config.json").write_text(json.dumps(CONFIG))
    for name in ("squad", "swag", "codah"):
        (folder / name).mkdir()
    for part, count, seed in (("train", 20, 11), ("dev", 8, 12), ("test", 5, 13)):
        written = [", a ." if number % 4 == 3 else text for number, text in enumerate(texts(count, seed, 18))]
        seconds = texts(count, seed + 10, 6)
        rows = [
            {
                "text": text, "second": second, "class": class_of(text), "classes": ";".join(classes_of(text)),
                "number": number_of(text), "tags": tags_of(text),
            }
            for text, second in zip(written, seconds, strict=True)
        ]  # fmt: skip
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        _write_squad(folder / "squad" / f"{part}-v2.0.json", written)
        _write_choices(folder, part, [(text, *endings_of(text, seed)) for text in written])


def _write_squad(path: pathlib.Path, contexts: list[str]) -> None:
    paragraphs = []
    for number, context in enumerate(contexts):
        answer = answer_of(context)
        answers = [{"text": answer[0], "answer_start": answer[1]}] if answer else []
        question = {"id": f"q{number}", "question": "who ?", "answers": answers, "is_impossible": not answers}
        paragraphs.append({"context": context, "qas": [question]})
    path.write_text(json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}))


def _write_choices(folder: pathlib.Path, part: str, rows: list[tuple[str, list[str], int]]) -> None:
    with (folder / "swag" / f"{'val' if part == 'dev' else part}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sent1", "sent2", "ending0", "ending1", "ending2", "ending3", "label"])
        writer.writerows([text, "the", *endings, right] for text, endings, right in rows)
    lines = ["\t".join(["o", text, *endings, str(right)]) for text, endings, right in rows]
    (folder / "codah" / f"{part}.tsv").write_text("\n".join(lines) + "\n")


# The classes that users import, and the methods whose arguments they give.
CLASSES = (
    "TextClassifier", "TextRegressor", "TokenTagger", "QuestionAnswerer", "MultipleChoice", "MaskedLM", "TextEncoder",
)  # fmt: skip
METHODS = (
    "__init__", "from_checkpoint", "compile", "fit", "evaluate", "predict", "load", "save_checkpoint", "export",
    "freeze", "classify", "tag", "answer", "choose", "fill",
)  # fmt: skip


def signature_of(owner: type, method: str) -> dict[str, list[str]]:
    """Returns the kind and default of each argument by name, with those that a class hands to the one above it."""
    arguments: dict[str, list[str]] = {}
    for each in owner.__mro__:
        if each.__module__.split(".")[0] != "official_bert" or method not in vars(each):
            continue
        function = vars(each)[method]
        parameters = list(inspect.signature(getattr(function, "__func__", function)).parameters.values())[1:]
        for parameter in parameters:
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
                default = "(none)" if parameter.default is inspect.Parameter.empty else repr(parameter.default)
                arguments.setdefault(parameter.name, [parameter.kind.name, default])
        if all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters):
            break
    return arguments


def signatures() -> dict[str, dict[str, dict[str, list[str]]]]:
    """Returns the arguments of each public class' methods."""
    return {
        name: {method: signature_of(owner, method) for method in METHODS if hasattr(owner, method)}
        for name, owner in ((name, getattr(official_bert, name)) for name in CLASSES)
    }


def as_json(value: Any) -> Any:
    """Returns answers of any form as JSON gives them back."""

    def default(each: Any) -> Any:
        return dataclasses.asdict(each) if dataclasses.is_dataclass(each) else each.tolist()

    return json.loads(json.dumps(value, default=default))


def _write_json(name: str, value: Any) -> None:
    (FOLDER / name).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _write_archive(folder: pathlib.Path, paths: Iterable[pathlib.Path]) -> None:
    """Writes files below a folder as an archive of its name; XZ, since the exports have large parts in common."""
    with tarfile.open(FOLDER / f"{folder.name}.tar.xz", "w:xz") as archive:
        for path in sorted(paths):
            if path.is_file():
                entry = tarfile.TarInfo(str(path.relative_to(folder)))  # without time and owner
                entry.size = path.stat().st_size
                with path.open("rb") as file:
                    archive.addfile(entry, file)


def _make_models(folder: pathlib.Path) -> None:
    answers, losses = {}, {}
    for name, case in MODELS.items():
        model = built(case, folder)
        path = folder / "keras" / f"{name}.keras"
        path.parent.mkdir(exist_ok=True)
        steps = fitted(model, case) if case.x is not None else []
        model.save(path)
        answers[name] = as_json(model.predict(case.asked))
        again = type(model).load(str(path))
        more = fitted(again, case, EPOCHS, EPOCHS + 1) if case.x is not None else []
        losses[name] = {"fit": steps, "loaded": more}
        if name in EXPORTS:
            model.export(str(folder / "exports" / name))
    _write_json("answers.json", answers)
    _write_json("losses_of_fit.json", losses)
    of_exports = {name: answers_of_export(name, folder / "exports" / name, folder) for name in EXPORTS}
    _write_json("answers_of_exports.json", of_exports)
    for name in ("keras", "exports"):
        _write_archive(folder / name, (folder / name).rglob("*"))


# Nobody reads these of a run that has ended: the cache and TensorBoard's events.
_LEFT_OUT = ("features", "train", "eval")


def _make_runs(folder: pathlib.Path) -> None:
    for name in RUNS:
        run(name, f"runs/{name}", train=True)
        shutil.rmtree(folder / "runs" / name / "checkpoints")
    with _stopping_at(STOPPED_AT), contextlib.suppress(SystemExit):
        run(STOPPED, "runs/stopped", train=True)
    kept = [
        path
        for path in (folder / "runs").rglob("*")
        if not set(path.relative_to(folder / "runs").parts) & set(_LEFT_OUT)
    ]
    _write_archive(folder / "runs", kept)


@contextlib.contextmanager
def _stopping_at(step: int) -> Any:
    """Sends SIGTERM after a step, as whoever shuts a machine down does."""
    from official_bert.finetuning import trainer

    train = trainer.Trainer.train

    def stopping(
        self: Any, features: Any, first: int, last: int, on_step: Callable[[int, float], bool], *rest: Any
    ) -> Any:
        def then_stop(done: int, loss: float) -> bool:
            if done == step:
                signal.raise_signal(signal.SIGTERM)
            return on_step(done, loss)

        return train(self, features, first, last, then_stop, *rest)

    trainer.Trainer.train = stopping
    try:
        yield
    finally:
        trainer.Trainer.train = train


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    _write_json("signatures.json", signatures())
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_files(folder)
        with contextlib.chdir(folder):
            _make_runs(folder)
            _make_models(folder)
    for path in sorted(FOLDER.iterdir()):
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
