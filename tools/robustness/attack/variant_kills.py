"""As kills, of further commands: every variant of pre-training, evaluation, a shard of answers, the paper's tables."""

from typing import TYPE_CHECKING

from tools.robustness.attack import kills
from tools.robustness.attack.variants import VARIANTS

if TYPE_CHECKING:
    from tools.robustness.attack.campaign import Case

NEEDS = tuple(dict.fromkeys(need for command in VARIANTS for need in (*command.needs, command.name)))


def attack(case: "Case") -> None:
    """Kills a command, only by SIGKILL, two to four times, and gives it again."""
    kills.kill_and_repeat(case, VARIANTS[case.number % len(VARIANTS)])
