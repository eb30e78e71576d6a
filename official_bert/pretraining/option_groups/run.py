"""Where a run stands: what it saves, logs and keeps, and how it goes on."""

import dataclasses
import re

from official_bert.errors import UserError
from official_bert.utils.flags import option

RECORDS = "data"  # what --allow_changes calls the records themselves

_GROUP = "the run"  # the heading in --help


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The flags about the run's folder, checkpoints and log."""

    output_dir: str = option(
        dataclasses.MISSING,
        "Folder of the run: checkpoints, logs, results. Given again, resumes.",
        group=_GROUP,
        free=True,
    )
    begin_anew: bool = option(
        False, "Whether to begin at step 0 in a folder whose run has lost its checkpoints.", group=_GROUP, free=True
    )
    allow_changes: list[str] = option(
        [],
        f"Options (or {RECORDS}: the records) that may differ from those the run was begun with.",
        group=_GROUP,
        free=True,
    )
    save_checkpoints_steps: int = option(1000, "Steps between checkpoints.", group=_GROUP, free=True)
    keep_checkpoint_max: int = option(5, "How many checkpoints are kept.", group=_GROUP, free=True)
    log_steps: int = option(100, "Steps between lines of the log.", group=_GROUP, free=True)
    compare_with: str | None = option(
        None, "A run's folder or a file of configs/curves, to draw behind this run.", group=_GROUP, free=True
    )
    save_curves: str | None = option(
        None, "A file to keep this run's curves in, for other runs to compare with.", group=_GROUP, free=True
    )
    profile_steps: list[str] = option(
        [], "First and last step of a profile for TensorBoard, as in 100,110.", group=_GROUP, free=True
    )

    def check_run(self) -> None:
        """Raises a UserError if --profile_steps is not a range of steps."""
        steps = self.profile_steps
        if steps and not (re.fullmatch(r"\d+,\d+", ",".join(steps)) and int(steps[0]) < int(steps[1])):
            raise UserError(f"--profile_steps is {','.join(self.profile_steps)}; expected two steps, as in 100,110")
