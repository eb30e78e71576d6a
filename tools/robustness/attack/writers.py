"""What writes models is killed or may not write: what was there stays, and the same again leaves the new one alone."""

import hashlib
import pathlib
import random
import resource
import shutil
import signal
import time
import zipfile
from typing import TYPE_CHECKING

from tools.robustness.attack import processes
from tools.robustness.attack.commands import FINETUNE
from tools.robustness.attack.processes import NotHeldError, Running
from tools.robustness.attack.samples import CHECKPOINTS

if TYPE_CHECKING:
    from tools.robustness.attack.campaign import Case

NEEDS = (*FINETUNE.needs, FINETUNE.name, CHECKPOINTS)
_FORMATS = ("official_bert", "tf1", "hugging_face", "keras_hub")
_FILES = ("model.keras", "model.weights.h5", "model.h5")
_WRITERS = ("export", *_FORMATS, *_FILES)
_UNFINISHED = ".writing-"


def attack(case: "Case") -> None:
    """Stops a writer some times, and has it write once more."""
    rng, name = case.rng, _WRITERS[case.number % len(_WRITERS)]
    case.what = f"{'Keras saving' if name in _FILES else 'export' if name == 'export' else 'convert'}, {name}"
    whole, out = case.folder / "whole", case.folder / "out"
    whole.mkdir()
    since = time.monotonic()
    _start(name, case.samples.folder, whole).done().check((0,))
    seconds, expected = time.monotonic() - since, _names(whole)
    shutil.copytree(whole, out) if name in _FILES else out.mkdir()
    case.tried = rng.choice([2, 3, 4])
    for _ in range(case.tried):
        _stop(name, case, out, seconds)
        final = {each for each in _names(out) if _UNFINISHED not in each}
        if final != (expected if name in _FILES or final else set()):
            raise NotHeldError(f"there is {final}; expected {expected}")
        _check_files(name, out)
    if name in _FILES or not final:
        _start(name, case.samples.folder, out).done().check((0,))
        if _names(out) != expected:
            raise NotHeldError(f"there is {sorted(_names(out) ^ expected)} too much or too little")
        _check_files(name, out)
        if differing := [each for each in sorted(expected) if _digest(whole, each) != _digest(out, each)]:
            raise NotHeldError(f"another content: {', '.join(differing)}")


def _start(name: str, given: pathlib.Path, out: pathlib.Path, limits: dict[int, int] | None = None) -> Running:
    model = given / FINETUNE.name / "run"
    if name == "export":
        return processes.start(name, [f"--model_dir={model}", f"--export_dir={out}", "--version=1"], limits)
    if name in _FORMATS:
        source = given / CHECKPOINTS / "official_bert"
        return processes.start("convert", [f"--from={source}", f"--to={out}/model", f"--to_format={name}"], limits)

    def save() -> None:
        from official_bert.keras_models.classification import TextClassifier
        from official_bert.utils.command_line import exit_codes

        classifier = TextClassifier.from_checkpoint(str(model))
        for number, value in (limits or {}).items():
            resource.setrlimit(number, (value, value))
        with exit_codes():
            (classifier.save_weights if "weights" in name else classifier.save)(out / name)

    return processes.start_function(save)


def _stop(name: str, case: "Case", out: pathlib.Path, seconds: float) -> None:
    """Kills a writer at some moment, or has it meet a limit of a file's size."""
    rng: random.Random = case.rng
    if rng.random() < 0.2:
        limit = rng.randrange(3000, 100_000)  # what it prints is written to a file too
        _start(name, case.samples.folder, out, {resource.RLIMIT_FSIZE: limit}).done().check()
        case.done += f"at most {limit:,} bytes; "
        return
    number, moment = rng.choice((*(signal.SIGKILL,) * 3, signal.SIGTERM)), rng.uniform(0.3, 1.0) * seconds
    running = _start(name, case.samples.folder, out)
    end = time.monotonic() + moment
    running.wait(until=lambda: time.monotonic() > end)
    ended = running.kill(number, group=True)
    if ended.code not in (0, -number):
        ended.check()  # that it is there already
    case.done += f"{signal.Signals(number).name} after {moment:.2f} seconds{'' if ended.code else ', after its end'}; "


def _names(folder: pathlib.Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def _digest(folder: pathlib.Path, name: str) -> str:
    """A digest of a file's content, but for what tells the time, or is another one in each process."""
    if name.endswith((".keras", ".pb", ".json", ".md", "requests", "/checkpoint")) or ".h5" in name:
        return ""
    return hashlib.sha256((folder / name).read_bytes()).hexdigest()


def _check_files(name: str, out: pathlib.Path) -> None:
    """Raises NotHeldError unless Keras' file is whole."""
    from official_bert.checkpoints import hdf5

    if name.endswith(".keras"):
        with zipfile.ZipFile(out / name) as opened:
            if damaged := opened.testzip():
                raise NotHeldError(f"{damaged} in {name} is damaged")
    elif name in _FILES:
        hdf5.check_self_contained(str(out / name), name)
