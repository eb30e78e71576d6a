"""Texts that make-records prints about the counts of a run."""

import math
from collections.abc import Mapping

from data_gen.text import formats
from official_bert.data.sentence_objectives import NONE

_MAX_RANDOM_SHARE = 0.75  # Half of the pairs are random if the documents have enough sentences.
_MAX_UNKNOWN_SHARE = 0.1  # With a vocabulary of the text's language, it is about 0.01 or less.
_MAX_TRUNCATED_SHARE = 0.5  # Usually, about a tenth of the text is truncated.


def explain_empty_text(counts: dict[str, int]) -> str:
    """Returns the error message for a corpus without tokens.

    Args:
        counts: Counts of the corpus. The number of documents that --exclude_texts removed is under "excluded".
    """
    excluded = counts.get("excluded")
    if excluded:
        return f"all documents ({excluded:,}) contain a text of --exclude_texts"
    return "--input_file contains no text"


def describe(statistics: Mapping[str, int], dupe_factor: int) -> str:
    """Returns the printed summary of a make-records run.

    Args:
        statistics: The statistics in the manifest, by name:
            - text_documents: Number of documents.
            - text_tokens: Number of WordPiece tokens in the text.
            - text_unknown: Number of these tokens that are [UNK].
            - text_excluded: Number of documents left out because of --exclude_texts. Missing without this flag.
            - The counts of `formats.read_with_options`, with the prefix text_.
            - The counts of `shuffle.count_statistics`.
        dupe_factor: Number of passes over the text.
    """
    instances, tokens, text_tokens = (statistics[name] for name in ("instances", "tokens", "text_tokens"))
    predicted = "chosen during training, again in each epoch"
    if statistics["predictions"]:
        predicted = f"{100 * statistics['predictions'] / statistics['maskable']:.1f} % of the tokens of text"
    excluded = ""
    if "text_excluded" in statistics:
        excluded = f", {statistics['text_excluded']:,} more left out because of --exclude_texts"
    random_next = statistics["random_next"]
    warning = ""
    if random_next > _MAX_RANDOM_SHARE * instances:
        warning = (
            f"\nwarning: {random_next:,} of {instances:,} segment pairs are labelled random, because the text has too "
            "few documents of several sentences; separate documents by empty lines and write one sentence per line, or "
            f"pass --sentence_objective={NONE}"
        )
    unknown = statistics["text_unknown"] / text_tokens
    if unknown > _MAX_UNKNOWN_SHARE:
        warning += (
            f"\nwarning: {100 * unknown:.2f} % of the tokens are [UNK], because --vocab_file lacks characters of the "
            "text; pass a vocabulary of its language, such as one of official-bert learn-vocabulary"
        )
    truncated = max(0, 1 - statistics.get("sequential", math.inf) / (dupe_factor * text_tokens))
    if truncated > _MAX_TRUNCATED_SHARE:
        warning += (
            f"\nwarning: {100 * truncated:.2f} % of the text is in no record, because lines are longer than "
            f"--max_seq_length={statistics['positions'] // max(1, instances)}; write one sentence per line, pass "
            "--input_format=paragraphs, or pass a larger --max_seq_length"
        )
    return (
        f"{formats.describe_counts(statistics, 'text_')}"
        f"documents         {statistics['text_documents']:,}{excluded}\n"
        f"tokens in text    {text_tokens:,}, {100 * unknown:.2f} % of them [UNK]\n"
        f"truncated         {100 * truncated:.1f} % of the text in each pass\n"
        f"instances         {instances:,}\n"
        f"tokens            {tokens:,}\n"
        f"random segments   {100 * random_next / max(1, instances):.1f} % of the instances\n"
        f"predictions       {predicted}\n"
        f"padding           {100 * (1 - tokens / max(1, statistics['positions'])):.1f} % of all positions"
        f"{warning}"
    )
