"""The flags of compare."""

import dataclasses

from official_bert.utils.flags import option


@dataclasses.dataclass(frozen=True)
class Options:
    """Where the page goes."""

    output_file: str = option("compare.html", "The page, which needs no other file.")
