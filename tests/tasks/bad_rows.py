from official_bert.utils.bad_rows import SKIP, BadRows


class KeptRows(BadRows):
    """Skips bad rows and keeps their error messages."""

    def __init__(self) -> None:
        super().__init__(SKIP)
        self.problems: list[str] = []

    def add(self, path: str, line: int | str, problem: str) -> None:
        place = f"line {line}" if isinstance(line, int) else line
        self.problems.append(f"{path}, {place}: {problem}")


def read_kept(read, path: str, **options):
    """Returns the valid examples of a file, and the error messages of the others."""
    bad_rows = KeptRows()
    return read(path, bad_rows=bad_rows, **options), bad_rows.problems
