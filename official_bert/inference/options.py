"""The flags of the predict, features and fill-mask commands."""

import dataclasses

from official_bert.errors import UserError
from official_bert.inference.shards import ALL_ROWS, MAX_SHARDS, Shard
from official_bert.modeling.choices import CLS_POOLING, MAX, MEAN
from official_bert.tokenization.casing import STRIP_ACCENTS
from official_bert.utils import tables
from official_bert.utils.dask_cluster import MANY_MACHINES, DaskOptions
from official_bert.utils.flags import ValidatedOptions, option

AUTO, NPY, PARQUET, JSONL, ORIGINAL = FEATURE_FORMATS = ("auto", "npy", "parquet", "jsonl", "original")
NONE = "none"
TRAINED = "trained"
EXTRACTOR_POOLINGS = (NONE, CLS_POOLING, MEAN, MAX)
POOLINGS = (*EXTRACTOR_POOLINGS, TRAINED)
PIECES, WORDS = ALIGNMENTS = ("pieces", "words")


@dataclasses.dataclass(frozen=True)
class BatchPredictionOptions(ValidatedOptions):
    """The flags of the predict command."""

    export_dir: str = option(dataclasses.MISSING, "Folder of an export, or of one of its versions.")
    input_file: str = option(
        dataclasses.MISSING,
        "File with the model's inputs: JSON lines (*.jsonl), a table with a header (*.csv, *.tsv), Parquet, a folder "
        "of Hugging Face datasets, or tfds:NAME#SPLIT. JSON lines and tables may be compressed.",
    )
    output_file: str = option(dataclasses.MISSING, "File for the answers, as JSON lines.")
    batch_size: int = option(32, "Number of texts per batch.", min=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.output_file.lower().endswith((".csv", ".tsv", ".parquet", *tables.COMPRESSED)):
            raise UserError(
                f"--output_file is {self.output_file}, but the answers are written as uncompressed JSON lines: an "
                "object on each line. Pass a name that ends in .jsonl"
            )


@dataclasses.dataclass(frozen=True)
class FeatureOptions(ValidatedOptions):
    """The flags of the features command. The defaults match the original's extract_features.py."""

    init: str = option(
        dataclasses.MISSING, "Checkpoint of an encoder: a name, folder or file, in any format that convert reads."
    )
    input_file: str = option(
        dataclasses.MISSING,
        'File with one text per line, or a pair separated by " ||| ". Or a table or data set as for predict, with the '
        "columns text (and text_pair), or the columns that a fine-tuned model was trained on.",
    )
    output_file: str = option(dataclasses.MISSING, "File for the vectors: *.npy, *.parquet or *.jsonl.")
    output_format: str = option(
        AUTO, 'Format of the output file. "original" is the JSON format of extract_features.py.', FEATURE_FORMATS
    )
    layers: list[str] = option(
        ["-1", "-2", "-3", "-4"],
        "Layers whose vectors are written: 0 for the embeddings, 1 for the first layer, -1 for the last.",
        items=int,
    )
    pooling: str = option(
        NONE,
        "How to make one vector per text: from [CLS], as the mean or maximum over all tokens, or as the model was "
        "trained by finetune --task=embeddings (trained), which also sets --layers, --max_seq_length and --normalize.",
        POOLINGS,
    )
    normalize: bool = option(
        False, "With pooling: divide the vectors of a text by their common length over all layers."
    )
    align: str = option(
        PIECES,
        "Without pooling: a vector for each word piece (pieces), or their mean for each word (words).",
        ALIGNMENTS,
    )
    is_split_into_words: bool = option(
        False, "Read lists of words from the column words of JSON lines or Parquet, instead of texts."
    )
    max_seq_length: int | None = option(
        None,
        "Maximum number of tokens, with [CLS] and [SEP]. Longer texts are truncated.",
        min=4,
        shown_default="128, or the number of positions of a smaller model",
    )
    batch_size: int = option(32, "Number of texts per batch.", min=1)
    vocab_file: str | None = option(None, "Vocabulary (vocab.txt), for a checkpoint without one.")
    do_lower_case: bool | None = option(
        None, "Whether the vocabulary is uncased, for a checkpoint that does not specify it."
    )
    strip_accents: bool | None = option(None, STRIP_ACCENTS)
    given_flags: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class ShardOptions(DaskOptions):
    """The flags that divide the input of predict and features among Dask workers or separate jobs."""

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
        """Returns the shard given by --shard, or a shard of all rows if the flag is not passed."""
        return Shard.parse(self.shard) if self.shard is not None else ALL_ROWS


@dataclasses.dataclass(frozen=True)
class FillMaskOptions(ValidatedOptions):
    """The flags of the fill-mask command."""

    model_dir: str = option(
        dataclasses.MISSING, "The --output_dir of pretrain, or another checkpoint with a masked-LM head."
    )
    top_k: int = option(5, "Number of candidates for each [MASK].", min=1)
    json: bool = option(False, "Print a line of JSON for each text.")
