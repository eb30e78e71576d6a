"""What is attacked: small text, records, models, tables and exports, each made by the commands themselves."""

import functools
import json
import pathlib
import random
import shutil
import time
from collections.abc import Callable

from tests.conftest import WORDS
from tools.robustness.attack import processes, variants
from tools.robustness.attack.commands import (
    COMMANDS,
    CONFIG,
    LENGTH,
    LINES,
    PREDICT,
    QUERIES,
    TABLE,
    TEXTS,
    VOCAB,
    Command,
    plain_text,
)  # fmt: skip
from tools.robustness.attack.processes import NotHeldError
from tools.robustness.attack.variants import RECORDS, VARIANTS

_CONFIG = {"vocab_size": len(WORDS), "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
           "intermediate_size": 16, "max_position_embeddings": LENGTH}  # fmt: skip
CHECKPOINTS, SERVED = "checkpoints", "served"
FORMATS = ("official_bert", "tf1", "hugging_face", "keras_hub", "model_garden")
# Of libraries of TensorFlow's past, which wrote no checksums: an archive of tests/golden and the model in it.
TENSORFLOW_MODELS = {
    "tf_model.h5": ("transformers", "classifier"),
    "tensorflow_hub": ("tensorflow_hub", "hub"),
    "keras_nlp": ("keras_nlp_0.8", "preset"),
}
_COMMANDS = (*COMMANDS, *RECORDS, *VARIANTS)
_NEEDS = {"export": PREDICT.needs} | {command.name: command.needs for command in _COMMANDS}


class Samples:
    """The samples in a folder, each made when it is first needed.

    Args:
        folder: of the samples.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def make(self, names: tuple[str, ...]) -> None:
        """Makes the samples of these names that are missing, and the files that all need."""
        if not (self.folder / VOCAB).exists():
            self._write_inputs()
        makers = self._makers()
        wanted = {need for name in names for need in (*_NEEDS.get(name, ()), name)}
        for name in makers:
            if name not in wanted or (self.folder / name).exists():
                continue
            since = time.monotonic()
            makers[name]()
            (self.folder / f"{name}.seconds").write_text(f"{time.monotonic() - since:.2f}")

    def _makers(self) -> dict[str, Callable[[], None]]:
        """What makes each sample, in an order in which what one needs comes before it."""

        def run(command: Command) -> None:
            (self.folder / command.name).mkdir()
            _succeed(command.program, command.arguments(self.folder, self.folder / command.name))

        def export() -> None:
            _succeed("export", [f"--model_dir={self.folder}/finetune/run", f"--export_dir={self.folder}/export"])

        made = {command.name: functools.partial(run, command) for command in _COMMANDS}
        return {
            **{name: made.pop(name) for name in PREDICT.needs if name in made},
            "export": export,
            **made,
            CHECKPOINTS: lambda: processes.call(self._write_checkpoints),
            SERVED: lambda: processes.call(self._write_served),
        }

    def seconds(self, name: str) -> float:
        """How long it took to make a sample."""
        return float((self.folder / f"{name}.seconds").read_text())

    def check_result(self, command: Command, out: pathlib.Path, may_lack: str | None = None) -> None:
        """Raises NotHeldError unless a command's result is that of an unharmed run.

        Args:
            command: what was run.
            out: where to.
            may_lack: a log, some of whose lines may be gone.
        """
        expected, seen = command.result(self.folder / command.name), command.result(out)
        differing = sorted(name for name in {*expected, *seen} if expected.get(name) != seen.get(name))
        if may_lack:
            differing = [name for name in differing if name in seen or not name.startswith(f"{may_lack}, step ")]
        if differing:
            raise NotHeldError(f"the result is another one than unharmed: {', '.join(differing[:5])}")

    def _write_inputs(self) -> None:
        rng = random.Random(0)
        (self.folder / VOCAB).write_text("".join(f"{word}\n" for word in WORDS))
        (self.folder / CONFIG).write_text(json.dumps(_CONFIG))
        for name in TEXTS:
            documents = ["\n".join(plain_text(rng) for _ in range(8)) for _ in range(40)]
            (self.folder / name).write_text("\n\n".join(documents) + "\n")
        rows = [f"{'ab'[number % 2]},{plain_text(rng)}\n" for number in range(64)]
        (self.folder / TABLE).write_text("label,text\n" + "".join(rows))
        (self.folder / QUERIES).write_text("".join(json.dumps({"text": plain_text(rng)}) + "\n" for _ in range(200)))
        (self.folder / LINES).write_text("".join(f"{plain_text(rng)}\n" for _ in range(200)))
        variants.write_inputs(self.folder)

    def _write_checkpoints(self) -> None:
        from tests.checkpoints.checkpoint_samples import unpacked, write_sample

        beside = self.folder / f"{CHECKPOINTS}.writing"
        beside.mkdir()
        for format_name in FORMATS:
            write_sample(format_name, beside / format_name)
        for name, (library, model) in TENSORFLOW_MODELS.items():
            unpacked(library, beside / "libraries").joinpath(model).rename(beside / name)
            (beside / name / "expected.npz").unlink()
        shutil.rmtree(beside / "libraries")
        beside.rename(self.folder / CHECKPOINTS)

    def _write_served(self) -> None:
        from tests.serving import served_models

        beside = self.folder / f"{SERVED}.writing"
        served_models.versioned(beside / "size")
        served_models.question_answering(beside / "answers")
        served_models.multiple_choice(beside / "endings")
        beside.rename(self.folder / SERVED)


def _succeed(name: str, arguments: list[str]) -> None:
    ended = processes.run(name, arguments)
    if ended.code:
        raise RuntimeError(f"{name} ended with {ended.code} before any attack: {ended.output[-3000:]}")


def damage(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Returns the content of a file with some damage, and what was done."""
    kind = rng.choice(["flip", "flip", "flip", "cut", "insert", "zero", "empty"])
    place = rng.randrange(max(len(content), 1))
    if kind == "flip" and content:
        bit = 1 << rng.randrange(8)
        return content[:place] + bytes([content[place] ^ bit]) + content[
            place + 1 :
        ], f"bit {bit} of byte {place} flipped"
    if kind == "cut":
        return content[:place], f"cut at byte {place}"
    if kind == "insert":
        return content[:place] + rng.randbytes(rng.randrange(1, 9)) + content[place:], f"bytes put in at {place}"
    if kind == "zero":
        end = min(place + rng.randrange(1, 64), len(content))
        return content[:place] + bytes(end - place) + content[end:], f"bytes {place} to {end} set to 0"
    return b"", "emptied"
