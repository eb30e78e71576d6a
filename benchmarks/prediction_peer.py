"""Answers to a file of texts as a user of Hugging Face's Trainer gets them; the process that prediction.py starts.

It imports nothing else, since its start is measured too.
"""

import json
import pathlib
import sys
from typing import Any

import numpy as np
import transformers


def predict(model: str, texts: str, output: str, batch_size: int) -> None:
    """Writes the answers to a file of texts."""
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    lines = pathlib.Path(texts).read_text(encoding="utf-8").splitlines()
    encoded = tokenizer([json.loads(line)["text"] for line in lines], truncation=True, max_length=128)["input_ids"]
    order = sorted(range(len(encoded)), key=lambda number: len(encoded[number]))
    arguments = transformers.TrainingArguments(
        output_dir=f"{output}.folder", per_device_eval_batch_size=batch_size, report_to="none", disable_tqdm=True,
        use_cpu=True, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=transformers.AutoModelForSequenceClassification.from_pretrained(model), args=arguments,
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
    )  # fmt: skip
    rows: Any = [{"input_ids": encoded[number]} for number in order]
    logits = np.asarray(trainer.predict(rows).predictions)
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    answers = np.empty_like(logits)
    answers[order] = powers / powers.sum(-1, keepdims=True)
    answered = "".join(json.dumps({"probabilities": row.tolist()}) + "\n" for row in answers)
    pathlib.Path(output).write_text(answered, encoding="utf-8")


if __name__ == "__main__":
    model_folder, texts_file, output_file, batch = sys.argv[1:]
    predict(model_folder, texts_file, output_file, int(batch))
