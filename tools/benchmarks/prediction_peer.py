"""Predicts a file of texts as users of Hugging Face do. tools/benchmarks/prediction.py starts this process.

The model is computed by the Trainer, or by ONNX Runtime from an ONNX file. Nothing else is imported, since the time to
start is measured, too.
"""

import json
import pathlib
import sys
from typing import Any

import numpy as np
import transformers


def predict(model: str, texts: str, batch_size: int, output: str, onnx_file: str | None = None) -> None:
    """Predicts a file of texts and writes the answers to `output`."""
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    lines = pathlib.Path(texts).read_text(encoding="utf-8").splitlines()
    encoded = tokenizer([json.loads(line)["text"] for line in lines], truncation=True, max_length=128)["input_ids"]
    order = sorted(range(len(encoded)), key=lambda number: len(encoded[number]))
    rows = [encoded[number] for number in order]
    if onnx_file is None:
        logits = run_trainer(model, tokenizer, rows, output, batch_size)
    else:
        logits = run_onnx_runtime(onnx_file, tokenizer, rows, batch_size)
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    answers = np.empty_like(logits)
    answers[order] = powers / powers.sum(-1, keepdims=True)
    answered = "".join(json.dumps({"probabilities": row.tolist()}) + "\n" for row in answers)
    pathlib.Path(output).write_text(answered, encoding="utf-8")


def run_trainer(model: str, tokenizer: Any, encoded: list[list[int]], output: str, batch_size: int) -> Any:
    """Returns the logits of token sequences [B, C], computed by Hugging Face's Trainer."""
    arguments = transformers.TrainingArguments(
        output_dir=f"{output}.folder", per_device_eval_batch_size=batch_size, report_to="none", disable_tqdm=True,
        use_cpu=True, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=transformers.AutoModelForSequenceClassification.from_pretrained(model), args=arguments,
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
    )  # fmt: skip
    rows: Any = [{"input_ids": ids} for ids in encoded]
    return np.asarray(trainer.predict(rows).predictions)


def run_onnx_runtime(path: str, tokenizer: Any, encoded: list[list[int]], batch_size: int) -> Any:
    """Returns the logits of token sequences [B, C], computed by ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    logits = []
    for start in range(0, len(encoded), batch_size):
        batch = tokenizer.pad({"input_ids": encoded[start : start + batch_size]}, return_tensors="np")
        ids, mask = (batch[name].astype(np.int64) for name in ("input_ids", "attention_mask"))
        logits.append(session.run(None, {"input_ids": ids, "input_mask": mask, "segment_ids": np.zeros_like(ids)})[0])
    return np.concatenate(logits)


if __name__ == "__main__":
    model_folder, text_file, batch, output_file, *onnx_files = sys.argv[1:]
    predict(model_folder, text_file, int(batch), output_file, *onnx_files)
