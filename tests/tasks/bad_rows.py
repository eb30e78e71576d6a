from official_bert.utils.bad_rows import SKIP, BadRows


class KeptRows(BadRows):
    """Bad rows are passed over, and their problems kept."""

    def __init__(self) -> None:
        super().__init__(SKIP)
        self.problems: list[str] = []

    def add(self, path: str, line: int | str, problem: str) -> None:
        place = f"line {line}" if isinstance(line, int) else line
        self.problems.append(f"{path}, {place}: {problem}")
