"""The flags of predict, features and fill-mask."""

import dataclasses

from official_bert.errors import UserError
from official_bert.inference.shards import ALL_ROWS, MAX_SHARDS, Shard
from official_bert.modeling.choices import CLS_POOLING, MAX, MEAN
from official_bert.tokenization.casing import STRIP_ACCENTS
from official_bert.utils.dask_cluster import MANY_MACHINES, DaskOptions
from official_bert.utils.flags import ValidatedOptions, option

AUTO, NPY, PARQUET, JSONL, ORIGINAL = FEATURE_FORMATS = ("auto", "npy", "parquet", "jsonl", "original")
NONE = "none"
TRAINED = "trained"
POOLINGS = (NONE, CLS_POOLING, MEAN, MAX, TRAINED)
PIECES, WORDS = ALIGNMENTS = ("pieces", "words")


@dataclasses.dataclass(frozen=True)
class BatchPredictionOptions(ValidatedOptions):
    """The flags of predict."""

    export_dir: str = option(dataclasses.MISSING, "An export: the folder of one version, or of all (the newest one).")
    input_file: str = option(
        dataclasses.MISSING,
        "JSON lines (*.jsonl) or a table with a header (*.csv, *.tsv), also compressed; Parquet, a folder of Hugging "
        "Face's datasets, or tfds:NAME#SPLIT; with the model's inputs.",
    )
    output_file: str = option(dataclasses.MISSING, "The answers, as JSON lines.")
    batch_size: int = option(32, "Texts that the model reads at once.", min=1)


@dataclasses.dataclass(frozen=True)
class FeatureOptions(ValidatedOptions):
    """The flags of features; the defaults are the original's."""

    init: str = option(dataclasses.MISSING, "The checkpoint of an encoder: a folder or file in any format.")
    input_file: str = option(
        dataclasses.MISSING,
        'A text on each line, of a pair with " ||| " between; or a table or data set as for predict, with '
        "the columns text (and text_pair), or those that a fine-tuned model was trained with.",
    )
    output_file: str = option(dataclasses.MISSING, "Where the vectors go: a name in .npy, .parquet or .jsonl.")
    output_format: str = option(
        AUTO, 'The file\'s format; "original" is the JSON lines of the original.', FEATURE_FORMATS
    )
    layers: list[str] = option(["-1", "-2", "-3", "-4"], "The layers: 1 is the first, -1 the last.", items=int)
    pooling: str = option(
        NONE,
        "One vector for a text, of [CLS], or the mean or maximum over all tokens; trained: as a model of "
        "finetune --task=embeddings was trained, with its layers, --max_seq_length and --normalize.",
        POOLINGS,
    )
    normalize: bool = option(False, "With pooling: whether vectors are divided by their lengths.")
    align: str = option(PIECES, "Without pooling: a vector for each piece, or the mean for each word.", ALIGNMENTS)
    max_seq_length: int = option(128, "How many tokens of a text are kept, with [CLS] and [SEP].", min=4)
    batch_size: int = option(32, "How many texts are computed at a time.", min=1)
    vocab_file: str | None = option(None, "A vocab.txt, where the checkpoint has none.")
    do_lower_case: bool | None = option(None, "Whether the vocabulary is uncased, where the checkpoint does not say.")
    strip_accents: bool | None = option(None, STRIP_ACCENTS)


@dataclasses.dataclass(frozen=True)
class ShardOptions(DaskOptions):
    """The flags that divide the input of predict and features among workers or jobs."""

    num_shards: int = option(
        1,
        "With --dask: number of output files, each written by one worker. Files that exist are not computed again.",
        group=MANY_MACHINES,
        min=1,
        max=MAX_SHARDS,
    )
    shard: str | None = option(
        None,
        "I/N: process only part I of N of the input, with I from 0 to N-1. The output file is NAME-0000I-of-0000N. All "
        "N files together hold the results of all rows. For jobs of any scheduler.",
        group=MANY_MACHINES,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dask and self.shard is not None:
            raise UserError("Pass either --dask, which computes all shards, or --shard, which computes one.")
        if self.num_shards != 1 and not self.dask:
            raise UserError(f"--num_shards={self.num_shards} requires --dask; to compute one shard, pass --shard=I/N.")
        self.selected()

    def selected(self) -> Shard:
        """Returns the shard that --shard names; without it, all rows."""
        return Shard.parse(self.shard) if self.shard is not None else ALL_ROWS


@dataclasses.dataclass(frozen=True)
class FillMaskOptions(ValidatedOptions):
    """The flags of fill-mask."""

    model_dir: str = option(dataclasses.MISSING, "The --output_dir of pretrain.")
    top_k: int = option(5, "How many candidates to print.", min=1)
