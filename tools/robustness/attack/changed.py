"""Other data under a run of fine-tuning that is there: the same command refuses them."""

import shutil
from typing import TYPE_CHECKING

from tools.robustness.attack import processes
from tools.robustness.attack.commands import FINETUNE, TABLE
from tools.robustness.attack.processes import NotHeldError

if TYPE_CHECKING:
    from tools.robustness.attack.campaign import Case

NEEDS = FINETUNE.needs


def attack(case: "Case") -> None:
    """Trains, changes a row of what it trained on or was scored on, and gives the command again."""
    given, rng = case.samples.folder, case.rng
    part = ("train", "eval")[case.number % 2]
    case.what = f"finetune, other {part} data"
    path = case.folder / "data.csv"
    shutil.copy(given / TABLE, path)
    arguments = [*FINETUNE.arguments(given, case.folder), f"--{part}_file={path}"]  # the last one counts
    processes.run(FINETUNE.name, arguments).check((0,))
    lines = path.read_text().splitlines()
    row = rng.randrange(1, len(lines))
    lines[row] += " " + rng.choice(["cat", "dog"])
    path.write_text("\n".join(lines) + "\n")
    case.done = f"row {row} changed"
    ended = processes.run(FINETUNE.name, arguments)
    ended.check((1,))
    wanted = {"train": "other training data", "eval": "other evaluation data"}[part]
    if wanted not in ended.output:
        raise NotHeldError(f"refused for another reason: {ended.last_line}")
