"""Further commands to kill: every variant of pre-training, evaluation, a shard of answers, and the paper's tables."""

import hashlib
import json
import pathlib
import random

from tools.robustness.attack.commands import (
    FINETUNE,
    LENGTH,
    MAKE_RECORDS,
    PREDICT,
    PREDICTIONS,
    PRETRAIN,
    TEXTS,
    Command,
    bundle_digests,
    file_digests,
    losses,
    plain_text,
)

EVALUATION, SQUAD = "evaluation.csv", "data/squad"
_EVALUATION_ROWS = 3000


def write_inputs(folder: pathlib.Path) -> None:
    """Writes the inputs that these commands have beside those of all."""
    rng = random.Random(1)
    rows = [f"{'ab'[number % 2]},{plain_text(rng)}\n" for number in range(_EVALUATION_ROWS)]
    (folder / EVALUATION).write_text("label,text\n" + "".join(rows))
    (folder / SQUAD).mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 12), ("dev", 4)):
        data = [{"title": "", "paragraphs": [_paragraph(rng, f"{part}{number}")]} for number in range(count)]
        (folder / SQUAD / f"{part}-v2.0.json").write_text(json.dumps({"version": "v2.0", "data": data}))


def _paragraph(rng: random.Random, name: str) -> dict[str, object]:
    words = plain_text(rng, 20).split()
    answer = words[rng.randrange(5)]
    found = {"text": answer, "answer_start": " ".join(words).index(answer)}
    answered = {"id": f"{name}-0", "question": "what", "answers": [found], "is_impossible": False}
    impossible = {"id": f"{name}-1", "question": "who", "answers": [], "is_impossible": True}
    return {"context": " ".join(words), "qas": [answered, impossible]}


def _records(name: str, flags: list[str]) -> Command:
    return Command(
        name, (), lambda given, out: [*MAKE_RECORDS.arguments(given, out), *flags], file_digests, MAKE_RECORDS.name
    )


_SHORT = _records("make-records-short", ["--max_seq_length=16", "--max_predictions_per_seq=3"])
# Used once: masks are made anew in each epoch.
_DYNAMIC = _records("make-records-dynamic", ["--masking=dynamic", "--dupe_factor=1"])
RECORDS = (_SHORT, _DYNAMIC)


def _pretraining(what: str, flags: list[str], records: Command = MAKE_RECORDS, second: bool = False) -> Command:
    """Pre-training with these flags besides, on these records, and with a second phase on the usual ones."""

    def arguments(given: pathlib.Path, out: pathlib.Path) -> list[str]:
        paths = {each.name: f"{given / each.name}/train-*.tfrecord" for each in (records, MAKE_RECORDS)}
        changed = [*PRETRAIN.arguments(given, out), f"--input_file={paths[records.name]}", *flags]
        if second:
            changed += [
                "--max_seq_length=16", "--max_predictions_per_seq=3", "--num_train_steps=12",
                "--phase2_num_train_steps=12", f"--phase2_input_file={paths[MAKE_RECORDS.name]}",
                f"--phase2_max_seq_length={LENGTH}", f"--phase2_max_predictions_per_seq={PREDICTIONS}",
            ]  # fmt: skip
        return changed

    needs = tuple(dict.fromkeys((MAKE_RECORDS.name, records.name)))
    return Command(f"pretrain-{what}", needs, arguments, PRETRAIN.result, PRETRAIN.name)


PRETRAININGS = (
    _pretraining("packed", ["--pack_sequences"], _SHORT, second=True),
    _pretraining("dynamic", [], _DYNAMIC),
    _pretraining("counted", ["--init_from_records"]),
    _pretraining("lamb", ["--optimizer=lamb", "--gradient_accumulation_steps=2"]),
    _pretraining("bfloat16", ["--dtype=bfloat16"]),
    _pretraining("float16", ["--dtype=float16"]),
)
# Most of its time is evaluation.
EVALUATED = Command(
    "finetune-evaluated",
    FINETUNE.needs,
    lambda given, out: [
        *FINETUNE.arguments(given, out), f"--eval_file={given / EVALUATION}", "--eval_batch_size=8",
        "--num_train_epochs=1", "--eval_steps=2",
    ],
    FINETUNE.result,
    FINETUNE.name,
)  # fmt: skip
SHARD = Command(
    "predict-shard",
    PREDICT.needs,
    lambda given, out: [*PREDICT.arguments(given, out), "--shard=1/2"],
    file_digests,
    PREDICT.name,
)


def _reproduced(folder: pathlib.Path) -> dict[str, str]:
    """Records, models, scores and the page of a run of the paper's experiments."""
    out, values = folder / "run", {}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if path.suffix == ".tfrecord" or path.name in ("vocab.txt", "results.json"):
            values[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.suffix == ".md" and path.parent == out:
            values[name] = path.read_text().replace(str(folder), "")
        elif path.name == "done.json" and "models" in path.parts:
            each = bundle_digests(path.parent) | losses(path.parent, "train.jsonl")
            values |= {f"{name}, {key}": value for key, value in each.items()}
    return values


REPRODUCE = Command(
    "reproduce",
    (),
    lambda given, out: [
        "--table=3", "--scale=tiny", f"--input_file={given / TEXTS[0]}", f"--data_dir={given}/data",
        f"--output_dir={out}/run", "--random_seeds=1", "--num_train_steps=10", "--num_train_epochs=1",
    ],
    _reproduced,
)  # fmt: skip
VARIANTS = (SHARD, REPRODUCE, EVALUATED, *PRETRAININGS)
