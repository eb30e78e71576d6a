"""The counts of a make-records run, for its printed summary and for the manifest."""

import dataclasses

from data_gen.rules.instances import Instance
from official_bert.data.sentence_objectives import NONE

_MAX_RANDOM_SHARE = 0.75  # Half of the pairs are random if the documents have enough sentences.


def explain_empty_text(counts: dict[str, int]) -> str:
    """Returns the error message for a corpus without tokens.

    Args:
        counts: Counts of the corpus. The number of documents that --exclude_texts removed is under "excluded".
    """
    excluded = counts.get("excluded")
    if excluded:
        return f"all documents ({excluded:,}) contain a text of --exclude_texts"
    return "the input contains no text"


@dataclasses.dataclass
class RecordSummary:
    """Counts of the text and the records. Manifests contain them under the same names.

    Attributes:
        text_documents: Number of documents.
        text_tokens: Number of WordPiece tokens in the text.
        text_unknown: Number of these tokens that are [UNK].
        instances: Number of records.
        positions: Number of records times max_seq_length.
        tokens: Number of positions that are not padding.
        maskable: Number of tokens other than [CLS] and [SEP].
        predictions: Number of predicted tokens.
        random_next: Number of records whose second segment is random (label 1).
        text_excluded: Number of documents left out because of --exclude_texts. None without this flag.
    """

    text_documents: int
    text_tokens: int
    text_unknown: int
    instances: int = 0
    positions: int = 0
    tokens: int = 0
    maskable: int = 0
    predictions: int = 0
    random_next: int = 0
    text_excluded: int | None = None

    def add(self, instance: Instance, max_seq_length: int) -> None:
        """Adds the counts of one instance."""
        self.instances += 1
        self.positions += max_seq_length
        self.tokens += len(instance.input_ids)
        self.maskable += len(instance.input_ids) - instance.special
        self.predictions += len(instance.masked_lm_ids)
        self.random_next += instance.is_random_next

    @classmethod
    def from_statistics(cls, statistics: dict[str, int]) -> "RecordSummary":
        """Returns the summary that the statistics in a manifest describe."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in statistics.items() if name in names})

    @property
    def counts(self) -> dict[str, int]:
        """The counts as a dict, to store in the manifest. Counts that are None are left out."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    def __str__(self) -> str:
        predicted = "chosen during training, again in each epoch"
        if self.predictions:
            predicted = f"{100 * self.predictions / self.maskable:.1f} % of the tokens of text"
        excluded = ""
        if self.text_excluded is not None:
            excluded = f", {self.text_excluded:,} others left out because of --exclude_texts"
        warning = ""
        if self.random_next > _MAX_RANDOM_SHARE * self.instances:
            warning = (
                f"\nwarning: {self.random_next:,} of {self.instances:,} segment pairs are labelled random, because the "
                "text has too few documents of several sentences; separate documents by empty lines and write one "
                f"sentence per line, or pass --sentence_objective={NONE}"
            )
        unknown = 100 * self.text_unknown / self.text_tokens
        return (
            f"documents         {self.text_documents:,}{excluded}\n"
            f"tokens in text    {self.text_tokens:,}, {unknown:.2f} % of them [UNK]\n"
            f"instances         {self.instances:,}\n"
            f"tokens            {self.tokens:,}\n"
            f"random segments   {100 * self.random_next / max(1, self.instances):.1f} % of the instances\n"
            f"predictions       {predicted}\n"
            f"padding           {100 * (1 - self.tokens / max(1, self.positions)):.1f} % of all positions"
            f"{warning}"
        )
