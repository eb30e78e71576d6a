"""A process that fine-tunes a classifier in one program's way: see tools/benchmarks/finetuning.py.

Its arguments are the name of a function and a JSON object of its options. It prints a JSON object with the accuracy and
the times at which some of the steps were done.
"""

import json
import pathlib
import sys
import time
from typing import Any

TIMED_STEPS = 20  # steps from one recorded time to the next
_EVAL_BATCH = 64

Rows = tuple[list[str], list[int]]


def read_rows(path: str) -> Rows:
    """Returns the sentences and labels of a file."""
    rows = [line.rsplit("\t", 1) for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines()[1:]]
    return [text for text, _ in rows], [int(label) for _, label in rows]


class Times:
    """The times at which steps were done, by the number of the step."""

    def __init__(self) -> None:
        self.by_step: dict[int, float] = {}

    def note(self, step: int) -> None:
        """Records the time after each TIMED_STEPS steps."""
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


def fit(options: dict[str, Any], train: Rows, dev: Rows, times: Times) -> float:
    """Fine-tunes with official_bert's TextClassifier; returns the accuracy."""
    import official_bert

    model = official_bert.TextClassifier.from_checkpoint(
        f"{options['folder']}/hugging_face", labels=[0, 1], max_seq_length=options["max_seq_length"]
    )
    model.compile(learning_rate=options["learning_rate"])
    model.fit(
        *train, batch_size=options["batch_size"], epochs=options["epochs"], callbacks=[times.callback()], verbose=0
    )
    scores = model.evaluate(*dev, batch_size=_EVAL_BATCH, return_dict=True, verbose=0)
    return float(scores["accuracy"])


def keras_hub(options: dict[str, Any], train: Rows, dev: Rows, times: Times) -> float:
    """Fine-tunes with keras-hub's BertTextClassifier; returns the accuracy."""
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
    steps = -(-len(train[0]) // options["batch_size"]) * options["epochs"]
    schedule = keras.optimizers.schedules.PolynomialDecay(options["learning_rate"], steps, 0.0)
    model.compile(
        optimizer=keras.optimizers.AdamW(schedule, weight_decay=0.01, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    data = tf.data.Dataset.from_tensor_slices(train).shuffle(len(train[0])).batch(options["batch_size"])
    model.fit(data, epochs=options["epochs"], callbacks=[times.callback()], verbose=0)
    scores = model.evaluate(tf.data.Dataset.from_tensor_slices(dev).batch(_EVAL_BATCH), return_dict=True, verbose=0)
    return float(scores["accuracy"])


def hugging_face(options: dict[str, Any], train: Rows, dev: Rows, times: Times) -> float:
    """Fine-tunes with Hugging Face's Trainer, in batches of similar length; returns the accuracy."""
    import numpy as np
    import transformers

    class Callback(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            times.note(state.global_step)

    path = f"{options['folder']}/hugging_face"
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, model_max_length=options["max_seq_length"])

    def encode(rows: Rows) -> list[dict[str, Any]]:
        ids = tokenizer(rows[0], truncation=True)["input_ids"]
        return [{"input_ids": each, "label": label} for each, label in zip(ids, rows[1], strict=True)]

    arguments = transformers.TrainingArguments(
        output_dir=f"{options['folder']}/trainer", per_device_train_batch_size=options["batch_size"],
        num_train_epochs=options["epochs"], per_device_eval_batch_size=_EVAL_BATCH,
        learning_rate=options["learning_rate"], warmup_steps=0.1, weight_decay=0.01, save_strategy="no",
        train_sampling_strategy="group_by_length", report_to="none", disable_tqdm=True, use_cpu=True,
        dataloader_pin_memory=False,
    )  # fmt: skip
    rows: Any = encode(train)
    trainer = transformers.Trainer(
        model=transformers.AutoModelForSequenceClassification.from_pretrained(path, num_labels=2), args=arguments,
        train_dataset=rows, data_collator=transformers.DataCollatorWithPadding(tokenizer), callbacks=[Callback()],
    )  # fmt: skip
    trainer.train()
    scored: Any = sorted(encode(dev), key=lambda row: len(row["input_ids"]))
    found = trainer.predict(scored)
    return float(np.mean(np.argmax(found.predictions, -1) == found.label_ids))


def main() -> None:
    name, options = sys.argv[1], json.loads(sys.argv[2])
    train, dev = (read_rows(f"{options['folder']}/{part}.tsv") for part in ("train", "dev"))
    times = Times()
    function = {each.__name__: each for each in (fit, keras_hub, hugging_face)}[name]
    accuracy = function(options, train, dev, times)
    print(json.dumps({"accuracy": accuracy, "times": times.by_step}), flush=True)


if __name__ == "__main__":
    main()
