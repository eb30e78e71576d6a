"""The counts of a run of make-records, as it prints them and as the manifest has them."""

import dataclasses

from data_gen.rules.instances import Instance
from official_bert.data.sentence_objectives import NONE

_MAX_RANDOM_SHARE = 0.75  # half of the pairs are random where documents have enough sentences


def no_text(counts: dict[str, int]) -> str:
    """Returns what is wrong with a text of no tokens, by its counts."""
    left_out = counts.get("excluded")
    return f"each document ({left_out:,}) holds a text of --exclude_texts" if left_out else "the input holds no text"


@dataclasses.dataclass
class RecordSummary:
    """Counts over the text and the records, under the names that a manifest has."""

    text_documents: int
    text_tokens: int  # word pieces in the text
    text_unknown: int  # how many of these are [UNK]
    instances: int = 0  # records written
    positions: int = 0  # record length times records
    tokens: int = 0  # positions that are not padding
    maskable: int = 0  # tokens that are neither [CLS] nor [SEP]
    predictions: int = 0
    random_next: int = 0  # records with the label 1: b comes from elsewhere
    text_excluded: int | None = None  # documents that were left out, as they hold a text of --exclude_texts

    def add(self, instance: Instance, max_seq_length: int) -> None:
        """Counts one instance."""
        self.instances += 1
        self.positions += max_seq_length
        self.tokens += len(instance.input_ids)
        self.maskable += len(instance.input_ids) - instance.special
        self.predictions += len(instance.masked_lm_ids)
        self.random_next += instance.is_random_next

    @classmethod
    def of(cls, statistics: dict[str, int]) -> "RecordSummary":
        """Returns the counts of a manifest."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in statistics.items() if name in names})

    @property
    def counts(self) -> dict[str, int]:
        """The counts as a manifest has them."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    def __str__(self) -> str:
        predicted = "to be chosen while training, anew each epoch"
        if self.predictions:
            predicted = f"{100 * self.predictions / self.maskable:.1f} % of the tokens of text"
        left_out = ""
        if self.text_excluded is not None:
            left_out = f", and {self.text_excluded:,} left out that hold a text of --exclude_texts"
        warning = ""
        if self.random_next > _MAX_RANDOM_SHARE * self.instances:
            warning = (
                f"\nwarning: {self.random_next:,} of {self.instances:,} segment pairs are labelled random, because the "
                "text has too few documents of several sentences; separate documents by blank lines and put one "
                f"sentence on a line, or pass --sentence_objective={NONE}"
            )
        unknown = 100 * self.text_unknown / self.text_tokens
        return (
            f"documents         {self.text_documents:,}{left_out}\n"
            f"tokens in text    {self.text_tokens:,}, {unknown:.2f} % of them [UNK]\n"
            f"instances         {self.instances:,}\n"
            f"tokens            {self.tokens:,}\n"
            f"random segments   {100 * self.random_next / max(1, self.instances):.1f} % of the instances\n"
            f"to be predicted   {predicted}\n"
            f"padding           {100 * (1 - self.tokens / max(1, self.positions)):.1f} % of all positions"
            f"{warning}"
        )
