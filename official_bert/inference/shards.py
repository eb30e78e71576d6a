"""Shards: contiguous parts of the input rows. Separate jobs or workers process them and write one output file each."""

import dataclasses
import os
import re
from typing import Any

from official_bert.errors import UserError
from official_bert.runs import run_file

MAX_SHARDS = 99_999  # The numbers in file names have five digits.


@dataclasses.dataclass(frozen=True)
class Shard:
    """A contiguous part of the input rows.

    Attributes:
        index: Index of the shard, from 0.
        count: Number of shards.
    """

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Parses the value of --shard, such as "0/8" for the first of eight shards.

        Raises:
            UserError: If the text is not of the form INDEX/COUNT, or the index is not less than the count.
        """
        found = re.fullmatch("([0-9]{1,5})/([0-9]{1,5})", text)
        if not found or int(found[1]) >= int(found[2]):
            raise UserError(
                f"--shard is {text!r}; it must be INDEX/COUNT with an index from 0 to COUNT - 1, such as 0/8 for the "
                "first of eight shards."
            )
        return cls(int(found[1]), int(found[2]))

    def path(self, output_file: str) -> str:
        """Returns the shard's output file, such as all-00003-of-00010.jsonl.

        If there is one shard, returns `output_file`.
        """
        if self.count == 1:
            return output_file
        stem, extension = os.path.splitext(output_file)
        return f"{stem}-{self.index:05}-of-{self.count:05}{extension}"

    def row_range(self, num_rows: int, rows_per_group: int) -> tuple[int, int]:
        """Returns the index of the shard's first row, and the index after its last row.

        Rows are sorted by length within groups. A group is never split between shards, so every batch is the same as
        without shards.

        Args:
            num_rows: Number of rows of the input.
            rows_per_group: Number of rows in a group.
        """
        num_groups = -(-num_rows // rows_per_group)
        bounds = [(index * num_groups // self.count) * rows_per_group for index in (self.index, self.index + 1)]
        return min(bounds[0], num_rows), min(bounds[1], num_rows)

    def select_rows(self, output_file: str, num_rows: int, rows_per_group: int) -> tuple[int, int]:
        """Returns the shard's `row_range`, after checking that all shards divide the same number of rows.

        The first job writes the numbers to <output_file>.shards.json, and later jobs compare theirs with it. Otherwise,
        a row that is added or removed between two jobs would be missing in the results, or occur twice.

        Args:
            output_file: The --output_file of all shards.
            num_rows: Number of rows of the input.
            rows_per_group: Number of rows in a group.

        Raises:
            UserError: If an earlier job had other numbers.
        """
        if self.count > 1:
            numbers = {"rows": num_rows, "num_shards": self.count, "rows_per_group": rows_per_group}
            check_same_run(f"{output_file}.shards.json", numbers)
        return self.row_range(num_rows, rows_per_group)


ALL_ROWS = Shard(0, 1)


def check_same_run(path: str, run: dict[str, Any]) -> None:
    """Writes the file that describes the run. If it exists, checks that it describes the same run.

    Raises:
        UserError: If the existing file describes another run.
    """
    before = run_file.read_run_file(path) or run
    changes = run_file.find_changes(before, {**dict.fromkeys(before), **run})
    descriptions = {name: f"{name} was {old!r} and is {new!r}" for name, (old, new) in changes.items()}
    if "inputs" in changes:
        old, new = (value or [] for value in changes["inputs"])
        changed = {source["file"] for source in [*old, *new] if source not in old or source not in new}
        descriptions["inputs"] = f"inputs differs in {', '.join(sorted(changed))}"
    run_file.refuse_changes(
        path, changes, "Remove it and its shards to start over, or pass another --output_file.", descriptions
    )
    run_file.write_run_file(path, run)
