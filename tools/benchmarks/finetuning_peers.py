"""A process that fine-tunes a model with one program, for finetuning.py and finetuning_quality.py in this folder.

Its arguments are the name of a function and a JSON object with its options. It prints a JSON object with the score on
the dev rows and the times at which some of the steps were done.
"""

import json
import pathlib
import sys
import time
from typing import Any

TIMED_STEPS = 20  # steps from one recorded time to the next
_EVAL_BATCH = 64

# Columns of texts and the labels: class numbers, or floats for regression.
Rows = tuple[list[list[str]], list[Any]]


def read_rows(path: str) -> Rows:
    """Returns the columns of texts and the labels in a TSV file with a header, whose last column is the label."""
    lines = pathlib.Path(path).read_text(encoding="utf-8").removesuffix("\n").split("\n")[1:]
    *texts, labels = zip(*(line.split("\t") for line in lines), strict=True)
    return [list(column) for column in texts], [json.loads(label) for label in labels]


def is_regression(rows: Rows) -> bool:
    return isinstance(rows[1][0], float)


class Times:
    """Records the times at which steps were done, by step."""

    def __init__(self) -> None:
        self.by_step: dict[int, float] = {}

    def note(self, step: int) -> None:
        """Records the present time if `step` is a multiple of TIMED_STEPS."""
        if step % TIMED_STEPS == 0:
            self.by_step[step] = time.time()

    def callback(self) -> Any:
        """Returns a Keras callback that records the times."""
        import keras

        class Callback(keras.callbacks.Callback):
            def on_train_begin(callback, logs: Any = None) -> None:  # noqa: N805
                callback.done = 0

            def on_train_batch_end(callback, batch: int, logs: Any = None) -> None:  # noqa: N805
                callback.done += 1
                self.note(callback.done)

        return Callback()


def fit(options: dict[str, Any], train: Rows, dev: Rows, times: Times, warmup_jump: bool = True) -> Any:
    """Fine-tunes with `fit` of official_bert. Returns the predictions for the dev rows.

    Args:
        options: Options of the benchmark.
        train: Rows to train on.
        dev: Rows to predict.
        times: Records the times of the steps.
        warmup_jump: Whether the learning rate drops abruptly after the warm-up, as in the original.
    """
    import official_bert

    settings = {"pair": len(train[0]) > 1, "seed": options["seed"], "max_seq_length": options["max_seq_length"]}
    model: Any
    if is_regression(train):
        model = official_bert.TextRegressor.from_checkpoint(options["model"], **settings)
    else:
        labels = sorted(set(train[1]))
        model = official_bert.TextClassifier.from_checkpoint(options["model"], labels=labels, **settings)
    if warmup_jump:
        model.compile(learning_rate=options["learning_rate"])
    else:
        steps = -(-len(train[1]) // options["batch_size"]) * options["epochs"]
        schedule = official_bert.WarmupPolynomialDecay(options["learning_rate"], steps, steps // 10, jump=False)
        model.compile(official_bert.BertAdamW(schedule, adam_bias_correction=True))
    texts, dev_texts = (tuple(columns) if len(columns) > 1 else columns[0] for columns in (train[0], dev[0]))
    settings = {"epochs": options["epochs"], "callbacks": [times.callback()], "verbose": 0, **options["fit"]}
    model.fit(texts, train[1], batch_size=options["batch_size"], **settings)
    return model.predict(dev_texts, batch_size=_EVAL_BATCH)


def fit_without_jump(options: dict[str, Any], train: Rows, dev: Rows, times: Times) -> Any:
    """Fine-tunes like `fit`, but the learning rate decays from its peak, as in Hugging Face's Trainer."""
    return fit(options, train, dev, times, warmup_jump=False)


def keras_hub(options: dict[str, Any], train: Rows, dev: Rows, times: Times) -> Any:
    """Fine-tunes with keras-hub's BertTextClassifier. Returns the predictions for the dev rows."""
    import keras
    import keras_hub
    import tensorflow as tf

    path = f"{options['folder']}/keras_hub"
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor.from_preset(
        path, sequence_length=options["max_seq_length"]
    )
    model = keras_hub.models.BertTextClassifier(
        backbone=keras_hub.models.BertBackbone.from_preset(path), preprocessor=preprocessor, num_classes=2
    )
    ((texts,), labels), ((dev_texts,), _) = train, dev
    steps = -(-len(texts) // options["batch_size"]) * options["epochs"]
    schedule = keras.optimizers.schedules.PolynomialDecay(options["learning_rate"], steps, 0.0)
    model.compile(
        optimizer=keras.optimizers.AdamW(schedule, weight_decay=0.01, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    data = tf.data.Dataset.from_tensor_slices((texts, labels)).shuffle(len(texts)).batch(options["batch_size"])
    model.fit(data, epochs=options["epochs"], callbacks=[times.callback()], verbose=0)
    return model.predict(tf.data.Dataset.from_tensor_slices(dev_texts).batch(_EVAL_BATCH), verbose=0)


def hugging_face(options: dict[str, Any], train: Rows, dev: Rows, times: Times) -> Any:
    """Fine-tunes with Hugging Face's Trainer. Returns the predictions for the dev rows."""
    import numpy as np
    import transformers

    class Callback(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            times.note(state.global_step)

    tokenizer = transformers.AutoTokenizer.from_pretrained(options["model"], model_max_length=options["max_seq_length"])

    def encode(rows: Rows) -> Any:
        encoded = tokenizer(*rows[0], truncation=True)
        names = ("input_ids", "token_type_ids", "attention_mask")
        return [
            dict(zip((*names, "label"), row, strict=True))
            for row in zip(*(encoded[name] for name in names), rows[1], strict=True)
        ]

    arguments = transformers.TrainingArguments(
        output_dir=f"{options['folder']}/trainer", per_device_train_batch_size=options["batch_size"],
        num_train_epochs=options["epochs"], per_device_eval_batch_size=_EVAL_BATCH, seed=options["seed"],
        learning_rate=options["learning_rate"], warmup_steps=0.1, save_strategy="no", report_to="none",
        disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False, **options["trainer"],
    )  # fmt: skip
    transformers.set_seed(options["seed"])
    trainer = transformers.Trainer(
        model=transformers.AutoModelForSequenceClassification.from_pretrained(
            options["model"], num_labels=1 if is_regression(train) else len(set(train[1]))
        ),
        args=arguments, train_dataset=encode(train), data_collator=transformers.DataCollatorWithPadding(tokenizer),
        callbacks=[Callback()],
    )  # fmt: skip
    trainer.train()
    encoded = encode(dev)
    order = sorted(range(len(encoded)), key=lambda number: len(encoded[number]["input_ids"]))
    sorted_rows: Any = [encoded[number] for number in order]
    predictions = np.asarray(trainer.predict(sorted_rows).predictions)
    return predictions[np.argsort(order)]


def compute_score(metric: str, predictions: Any, labels: list[Any]) -> float:
    """Returns the accuracy ("accuracy") or Pearson's correlation ("correlation") of predictions.

    For two classes, Pearson's correlation is Matthews' correlation coefficient.
    """
    import numpy as np

    predictions = np.asarray(predictions)
    answers = np.argmax(predictions, -1) if isinstance(labels[0], int) else predictions.reshape(-1)
    if metric == "accuracy":
        return float(np.mean(answers == labels))
    return float(np.corrcoef(answers, labels)[0, 1]) if np.ptp(answers) else 0.0


def main() -> None:
    name, options = sys.argv[1], json.loads(sys.argv[2])
    train, dev = (read_rows(f"{options['folder']}/{part}.tsv") for part in ("train", "dev"))
    times = Times()
    function = {each.__name__: each for each in (fit, fit_without_jump, keras_hub, hugging_face)}[name]
    score = compute_score(options["metric"], function(options, train, dev, times), dev[1])
    print(json.dumps({"score": score, "times": times.by_step}), flush=True)


if __name__ == "__main__":
    main()
