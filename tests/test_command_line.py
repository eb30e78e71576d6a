import subprocess
import sys

import pytest

from tests.conftest import ROOT

# In a process of its own, as flags are.
SCRIPT = """
import dataclasses, json
from official_bert import command_line
from official_bert.command_line import option

@dataclasses.dataclass
class Options:
    needed: list[str] = option(dataclasses.MISSING, "A list without a default.")
    sizes: list[str] = option(["tiny", "base"], "A list with one.")
    none: list[str] = option([], "A list with an empty one.")
    model: list[str] = option(["a=b"], "Given once for each.", repeated=True)
    number: int | None = option(None, "A number.")

command_line.define(Options)
command_line.run(lambda _: print(json.dumps(dataclasses.asdict(command_line.read(Options)))))
"""


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT, *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("flags", "expected"), [
    (["--needed=x,y"],
     '{"needed": ["x", "y"], "sizes": ["tiny", "base"], "none": [], "model": ["a=b"], "number": null}'),
    (["--needed=x", "--sizes=tiny", "--none=z", "--model=c=d", "--model=e=f", "--number=3"],
     '{"needed": ["x"], "sizes": ["tiny"], "none": ["z"], "model": ["c=d", "e=f"], "number": 3}'),
])  # fmt: skip
def test_flags_have_the_defaults_of_their_fields(flags: list[str], expected: str):
    done = run(*flags)
    assert (done.returncode, done.stdout.strip()) == (0, expected), done.stderr


def test_a_list_without_a_default_is_asked_for():
    done = run()
    assert done.returncode != 0
    assert "--needed" in done.stderr
