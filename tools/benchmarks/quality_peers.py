"""The programs that tools/benchmarks/quality.py compares, each run in a separate process.

The arguments of the process are the name of a function and a JSON object for it. Its last line of output is a JSON
object with the result.

hugging_face trains like run_mlm of transformers: Trainer, new masks in every batch, texts concatenated and cut into
full sequences, the fused optimizer, and a learning rate that warms up over a tenth of the steps and decays linearly.
BertForMaskedLM would compute the scores of every position. The loss here computes only the scores of masked positions,
as the other programs do, in the method that Trainer offers for this. keras_hub trains like its guides: BertMaskedLM in
fit, MaskedLMMaskGenerator, and AdamW with clipping of the global gradient norm.

Both train without dropout, which slows learning in short runs. Each measures the time of a few steps first, tries every
learning rate for a tenth of its budget, and spends the rest on the best one.
"""

import itertools
import json
import math
import os
import pathlib
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

_WARM_UP, _TIMED = 5, 40  # steps
_SECONDS_OF_CALL = 1.0  # of each timed call of official_bert's step
_KEPT_BACK = 1.0  # seconds of the budget that are reserved for saving the model
_SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")


def spent() -> float:
    """Returns the processor seconds that this process and its children have used so far."""
    return sum(os.times()[:4])


def contest(arguments: dict[str, Any], train: Callable[[float, int], float]) -> dict[str, Any]:
    """Chooses a learning rate, and trains with it for the rest of the budget.

    Args:
        arguments: The budget, "seconds", and the learning rates to try, "rates".
        train: Function (learning rate, steps) that trains a new model and returns the loss at the end.

    Returns:
        Steps, learning rate, loss, seconds per step, and the loss of each learning rate that was tried.
    """
    budget, rates = arguments["seconds"], arguments["rates"]
    train(rates[0], _WARM_UP)
    since = spent()
    train(rates[0], _TIMED)
    step = (spent() - since) / _TIMED
    tried = {}
    for rate in rates:
        # A single rate is tried only to measure the time of a step better.
        since, steps = spent(), max(_TIMED, int(budget / (10 if len(rates) > 1 else 50) / step))
        tried[rate] = train(rate, steps)
        step = (spent() - since) / steps
    best = min(rates, key=lambda rate: tried[rate] if math.isfinite(tried[rate]) else math.inf)
    steps = max(_TIMED, int((budget - spent() - _KEPT_BACK) / step))
    since = spent()
    loss = train(best, steps)
    taken = (spent() - since) / steps
    return {"steps": steps, "rate": best, "training_loss": loss, "step_seconds": taken, "tried": tried}


def lines(path: str) -> list[str]:
    return [line for line in pathlib.Path(path).read_text(encoding="utf-8").split("\n") if line]


def heldout_batches(arguments: dict[str, Any], path: str) -> Iterator[dict[str, Any]]:
    """Yields batches of the first held-out records in the file `path`."""
    from official_bert.data.input_pipeline import RecordSource
    from official_bert.data.record_schema import pretraining_schema

    schema = pretraining_schema(arguments["length"], arguments["heldout_predictions"])
    yield from RecordSource([path], schema).evaluation_batches(50).take(arguments["most_records"] // 50)


def measure_speed(arguments: dict[str, Any]) -> dict[str, float]:
    """Returns official_bert's processor seconds up to the end of its first step ("start") and per step ("step")."""
    from official_bert.utils.allocator import tune_allocator

    tune_allocator()
    import tensorflow as tf

    from official_bert.data.dataset_options import make_dataset_options
    from official_bert.data.record_schema import pretraining_schema
    from official_bert.modeling.config import BertConfig
    from official_bert.optimization import distribution
    from official_bert.optimization.choices import DTYPES, ONE_DEVICE
    from official_bert.optimization.schedules import WarmupPolynomialDecay
    from official_bert.pretraining.train_step import Pretrainer
    from tools.benchmarks.measuring import make_random_batch

    config = BertConfig.from_json_file(arguments["config"])
    strategy = distribution.get_strategy(ONE_DEVICE)
    pretrainer = Pretrainer(
        config=config, strategy=strategy, schedule=WarmupPolynomialDecay(1e-4, 1000, 10), seed=1,
        dtype=DTYPES[arguments["dtype"]], jit_compile=arguments["jit_compile"],
        compile_parts=distribution.compiles_parts(strategy),
    )  # fmt: skip
    schema = pretraining_schema(
        arguments["length"], arguments["predictions"], config.vocab_size, config.type_vocab_size
    )
    batch = make_random_batch(schema, arguments["batch"])
    data = tf.data.Dataset.from_tensors(batch).repeat().with_options(make_dataset_options())
    batches = iter(strategy.experimental_distribute_dataset(data))

    def time_step(steps: int) -> float:
        before = spent()
        pretrainer.train(batches, steps)
        return (spent() - before) / steps

    pretrainer.train(batches, 1)
    start = spent()
    steps = max(3, round(_SECONDS_OF_CALL / time_step(3)))
    return {"start": start, "step": statistics.median(time_step(steps) for _ in range(3))}


def score(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the loss and accuracy of a model of any program on held-out records, using official_bert's evaluation.

    A model that was never trained on a second segment may score better if all segment ids are 0. So both are tried, and
    the better result is returned.
    """
    from official_bert.checkpoints.loading import assign_weights, open_model
    from official_bert.modeling.initialization import gelu_exact
    from official_bert.optimization import distribution
    from official_bert.optimization.choices import ONE_DEVICE
    from official_bert.optimization.schedules import WarmupPolynomialDecay
    from official_bert.pretraining.losses import compute_pretraining_metrics
    from official_bert.pretraining.train_step import SUMS, Pretrainer

    model = open_model(arguments["model"])
    pretrainer = Pretrainer(
        config=model.config,
        strategy=distribution.get_strategy(ONE_DEVICE),
        schedule=WarmupPolynomialDecay(1e-4, 10),
        seed=1,
    )
    assign_weights(pretrainer.model, model.weights, allow_missing=True)
    if arguments["program"] == "keras_hub":  # its masked-LM head differs from BERT's
        pretrainer.model.get_layer("masked_lm_transform").activation = gelu_exact
        pretrainer.model.get_layer("masked_lm_layer_norm").epsilon = 1e-5
    results: dict[str, Any] = {}
    for (name, path), segments in itertools.product(arguments["heldout"].items(), (1, 0)):
        if name == "whole" and not segments:
            continue  # these records have one segment anyway
        totals = dict.fromkeys(SUMS, 0.0)
        for batch in heldout_batches(arguments, path):
            told = {**batch, "segment_ids": batch["segment_ids"] * segments}
            for key, value in pretrainer.evaluate(told).items():
                totals[key] += value
        metrics = compute_pretraining_metrics(totals)
        found = {
            "loss": metrics["masked_lm_loss"], "accuracy": metrics["masked_lm_accuracy"], "segments": bool(segments),
            "next_sentence_accuracy": metrics["next_sentence_accuracy"],
        }  # fmt: skip
        results[name] = min(found, results.get(name, found), key=lambda each: each["loss"])
        if segments:
            results[f"{name}_with_segments"] = found["loss"]
    return results


def own_loss(arguments: dict[str, Any], compute_logits: Callable[[dict[str, Any]], Any]) -> float:
    """Returns the loss of a program's own forward pass on held-out pairs, to check the converted weights."""
    import numpy as np

    total = count = 0.0
    for batch in heldout_batches(arguments, arguments["heldout"]["pairs"]):
        each = {name: values.numpy() for name, values in batch.items()}
        logits, weights = np.asarray(compute_logits(each), np.float64), each["masked_lm_weights"]
        highest = logits.max(-1, keepdims=True)
        losses = np.log(np.exp(logits - highest).sum(-1)) + highest[..., 0]
        losses -= np.take_along_axis(logits, each["masked_lm_ids"][..., None], -1)[..., 0]
        total, count = total + float((weights * losses).sum()), count + float(weights.sum())
    return total / count


def hugging_face(arguments: dict[str, Any]) -> dict[str, Any]:
    """Trains BertForMaskedLM with Hugging Face's Trainer."""
    import torch
    import transformers

    tokenizer = transformers.BertTokenizer(vocab=arguments["vocab"], model_max_length=arguments["length"])
    encoded = tokenizer(
        lines(arguments["text"]), return_attention_mask=False, return_token_type_ids=False, verbose=False
    )
    joined, length = list(itertools.chain.from_iterable(encoded["input_ids"])), arguments["length"]
    rows: Any = [{"input_ids": joined[at : at + length]} for at in range(0, len(joined) - length + 1, length)]
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=arguments["width"], num_hidden_layers=arguments["layers"],
        num_attention_heads=arguments["heads"], intermediate_size=4 * arguments["width"],
        max_position_embeddings=length, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    collate = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=arguments["masked_share"])
    model: Any = None

    class MaskedTrainer(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            labels = inputs.pop("labels")
            vectors, masked = model.bert(**inputs).last_hidden_state, labels != -100
            return torch.nn.functional.cross_entropy(model.cls(vectors[masked]), labels[masked])

    def train(rate: float, steps: int) -> float:
        nonlocal model
        transformers.set_seed(arguments["seed"])
        model = transformers.BertForMaskedLM(config)
        settings = transformers.TrainingArguments(
            output_dir=arguments["folder"], max_steps=steps, per_device_train_batch_size=arguments["batch"],
            learning_rate=rate, warmup_steps=0.1, weight_decay=0.01, optim="adamw_torch_fused", seed=arguments["seed"],
            logging_steps=max(1, steps // 20), save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
            dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = MaskedTrainer(model=model, args=settings, train_dataset=rows, data_collator=collate)
        trainer.train()
        return statistics.fmean([log["loss"] for log in trainer.state.log_history if "loss" in log][-4:])

    def compute_logits(batch: dict[str, Any]) -> Any:
        each = {name: torch.tensor(values.astype("int64")) for name, values in batch.items()}
        with torch.no_grad():
            vectors = model.bert(each["input_ids"], each["input_mask"], each["segment_ids"]).last_hidden_state
            positions = each["masked_lm_positions"][:, :, None].expand(-1, -1, vectors.shape[-1])
            return model.cls(vectors.gather(1, positions)).numpy()

    results = contest(arguments, train)
    model.save_pretrained(arguments["model"])
    tokenizer.save_pretrained(arguments["model"])
    seconds = spent()
    model.eval()
    return {**results, "processor_seconds": seconds, "own_loss": own_loss(arguments, compute_logits)}


def keras_hub(arguments: dict[str, Any]) -> dict[str, Any]:
    """Trains BertMaskedLM with keras-hub's fit."""
    import keras
    import keras_hub as hub
    import numpy as np
    import tensorflow as tf

    keras.utils.set_random_seed(arguments["seed"])
    tokenizer = hub.tokenizers.BertTokenizer(vocabulary=arguments["vocab"], lowercase=True, strip_accents=True)
    texts = tf.data.Dataset.from_tensor_slices(lines(arguments["text"])).batch(1000)
    joined = np.concatenate([part.numpy() for part in texts.map(lambda some: tokenizer(some).flat_values)])
    length, predictions = arguments["length"], math.ceil(arguments["masked_share"] * arguments["length"])
    inner = joined[: len(joined) // (length - 2) * (length - 2)].reshape(-1, length - 2)
    pad, start, end, mask = (tokenizer.token_to_id(piece) for piece in _SPECIAL)
    rows = np.pad(np.pad(inner, ((0, 0), (1, 0)), constant_values=start), ((0, 0), (0, 1)), constant_values=end)
    rows = np.random.default_rng(arguments["seed"]).permutation(rows)  # so that a small buffer shuffles the rest
    masker = hub.layers.MaskedLMMaskGenerator(
        vocabulary_size=tokenizer.vocabulary_size(), mask_selection_rate=arguments["masked_share"], mask_token_id=mask,
        mask_selection_length=predictions, unselectable_token_ids=[pad, start, end],
    )  # fmt: skip

    def masked(batch: Any) -> Any:
        drawn = masker(batch)
        inputs = {
            "token_ids": drawn["token_ids"], "mask_positions": drawn["mask_positions"],
            "padding_mask": tf.ones_like(batch), "segment_ids": tf.zeros_like(batch),
        }  # fmt: skip
        return inputs, drawn["mask_ids"], drawn["mask_weights"]

    data = tf.data.Dataset.from_tensor_slices(rows).shuffle(4096, seed=arguments["seed"]).repeat()
    batches = (
        data.batch(arguments["batch"], drop_remainder=True).map(masked, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    )
    backbone = hub.models.BertBackbone(
        vocabulary_size=tokenizer.vocabulary_size(), num_layers=arguments["layers"], num_heads=arguments["heads"],
        hidden_dim=arguments["width"], intermediate_dim=4 * arguments["width"], dropout=0.0,
        max_sequence_length=length,
    )  # fmt: skip
    model = hub.models.BertMaskedLM(backbone)
    # In variables, so that a step is traced and compiled once for all rates.
    peak, last = (keras.Variable(1.0, trainable=False) for _ in range(2))

    @keras.saving.register_keras_serializable(package="benchmarks")
    class Triangle(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            share = (keras.ops.cast(step, "float32") + 1.0) / last
            return peak * keras.ops.maximum(0.0, keras.ops.minimum(10.0 * share, (1.0 - share) / 0.9))

        def get_config(self) -> dict[str, Any]:
            return {}

    optimizer = keras.optimizers.AdamW(Triangle(), weight_decay=0.01, global_clipnorm=1.0)
    optimizer.build(model.trainable_variables)
    model.compile(optimizer=optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    initial, fresh = model.get_weights(), [np.array(variable) for variable in optimizer.variables]

    def train(rate: float, steps: int) -> float:
        model.set_weights(initial)
        for variable, value in zip(optimizer.variables, fresh, strict=True):
            variable.assign(value)
        peak.assign(rate)
        # Each epoch is a part of the run. The losses of the last ones are the result.
        parts = min(20, steps)
        last.assign(steps // parts * parts)
        history = model.fit(batches, steps_per_epoch=steps // parts, epochs=parts, verbose=0)
        return statistics.fmean(history.history["loss"][-4:])

    def compute_logits(batch: dict[str, Any]) -> Any:
        return model.predict_on_batch({
            "token_ids": batch["input_ids"], "padding_mask": batch["input_mask"], "segment_ids": batch["segment_ids"],
            "mask_positions": batch["masked_lm_positions"],
        })  # fmt: skip

    results = contest(arguments, train)
    model.save_to_preset(arguments["model"])
    tokenizer.save_to_preset(arguments["model"])
    return {**results, "processor_seconds": spent(), "own_loss": own_loss(arguments, compute_logits)}


def main() -> None:
    functions = {each.__name__: each for each in (measure_speed, score, hugging_face, keras_hub)}
    print(json.dumps(functions[sys.argv[1]](json.loads(sys.argv[2]))), flush=True)


if __name__ == "__main__":
    main()
