"""Every option is locked between the stop and the next start of a run, but those that say otherwise."""

import dataclasses

from official_bert.utils import resuming
from official_bert.utils.flags import option


@dataclasses.dataclass(frozen=True)
class Options:
    rate: float = option(dataclasses.MISSING, "Required.")
    folder: str = option("here", "Free.", resumable=True)
    layers: list[str] = option([], "Locked, since it does not say that it is free.")
    power: float = option(1.0, "Locked too.")


def test_an_option_is_locked_unless_it_says_that_it_is_free():
    assert resuming.locked_options(Options) == {"rate", "layers", "power"}
    assert resuming.locked_values(Options(0.1, "there", ["a"])) == {"rate": 0.1, "layers": ["a"], "power": 1.0}


def test_changes_are_those_of_locked_options():
    before = {"rate": 0.1, "folder": "here", "layers": [], "power": 1.0}
    assert resuming.changed_options(Options(0.1, "elsewhere"), before) == {}
    changes = resuming.changed_options(Options(0.2, layers=["a"]), before)
    assert changes == {"rate": (0.1, 0.2), "layers": ([], ["a"])}
    assert resuming.described(changes) == "--layers was [] and is ['a']; --rate was 0.1 and is 0.2"


def test_an_option_that_was_not_recorded_counts_as_changed():
    assert resuming.changed_options(Options(0.1), {"rate": 0.1, "layers": []}) == {"power": (None, 1.0)}
