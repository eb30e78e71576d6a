"""Which records a run reads, and their vocabulary."""

import dataclasses

from official_bert.utils.flags import DATA, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataOptions:
    """The flags about records."""

    input_file: list[str] = option(
        dataclasses.MISSING, "TFRecord files or glob patterns, separated by commas.", group=DATA, free=True
    )
    max_seq_length: int = option(128, "Length of the records, in tokens.", group=DATA)
    max_predictions_per_seq: int = option(20, "Predictions in a record.", group=DATA)
    vocab_file: str | None = option(
        None, "The records' vocabulary; it is kept with the model, for its answers.", group=DATA, free=True
    )
    do_lower_case: bool | None = option(
        None, "Whether that vocabulary is uncased; by default what the records' manifest says.", group=DATA, free=True
    )
    on_corrupt_record: str = option(
        "stop",
        "What to do with damaged records; to skip them all files are read through first.",
        ("stop", "skip"),
        group=DATA,
        free=True,
    )
