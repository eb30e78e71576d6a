"""The tables of the BERT paper (arXiv:1810.04805v2) as data: rows, flags and published scores, at three scales."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from official_bert.data.masking_rates import BERT_RATES

Flags = Mapping[str, Any]

PERPLEXITY = "perplexity"  # of the masked LM on held-out records: the only column that is not a task


class Shape(NamedTuple):
    """The size of a model."""

    layers: int
    hidden: int
    heads: int

    def __str__(self) -> str:
        return f"L-{self.layers}_H-{self.hidden}_A-{self.heads}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """A row of a table: a variant of the model or its training.

    Attributes:
        name: Name of the row on the result page.
        paper: Scores in the paper, by column.
        records: Flags of make-records, in addition to the flags of the scale.
        pretraining: Flags of pretrain, in addition to the flags of the scale.
        finetuning: Flags of finetune, in addition to the flags of the scale.
        size: Index of the model in `Scale.shapes`. If None, `Scale.shape` is used.
        share: Share of the pre-training steps after which the model is fine-tuned. 1 for all steps.
    """

    name: str
    paper: Mapping[str, float]
    records: Flags = dataclasses.field(default_factory=dict)
    pretraining: Flags = dataclasses.field(default_factory=dict)
    finetuning: Flags = dataclasses.field(default_factory=dict)
    size: int | None = None
    share: float = 1.0


class Table(NamedTuple):
    """A table or figure of the paper.

    Attributes:
        title: Number and subject of the table.
        columns: The columns: keys of COLUMNS, or PERPLEXITY.
        variants: The rows.
    """

    title: str
    columns: tuple[str, ...]
    variants: tuple[Variant, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """How large the experiments are: sizes of models, numbers of steps, and so on.

    Pre-training may begin with short sequences, because a small model then learns sooner to use context. This part has
    no next-sentence prediction, since short sequences contain too little of both segments.

    Attributes:
        shape: Size of the model.
        shapes: The sizes of the models of table 6 (the fields of `Shape`), in the order of the paper.
        vocab_size: Number of pieces in the vocabulary.
        config: Values of bert_config.json in addition to the size.
        records: Flags of make-records.
        pretraining: Flags of pretrain.
        steps: Number of pre-training steps.
        short_share: Share of the steps that train on short sequences, before the others.
        short_records: Flags of make-records for short sequences, in addition to `records`.
        short_pretraining: Flags of pretrain for short sequences, in addition to `pretraining`.
        phase2_steps: Number of final steps on records of length 512.
        finetuning: Flags of finetune.
        lstm: Additional flags of finetune for a head with a BiLSTM.
        features: Additional flags of finetune for a frozen encoder.
        tasks: Additional flags of finetune, by column.
    """

    shape: Shape
    shapes: tuple[tuple[int, int, int], ...]
    vocab_size: int
    config: Flags
    records: Flags
    pretraining: Flags
    steps: int
    finetuning: Flags
    features: Flags
    lstm: Flags = dataclasses.field(default_factory=dict)
    short_share: float = 0.0
    short_records: Flags = dataclasses.field(default_factory=dict)
    short_pretraining: Flags = dataclasses.field(default_factory=dict)
    phase2_steps: int = 0
    tasks: Mapping[str, Flags] = dataclasses.field(default_factory=dict)


_SMALL_RECORDS = {"max_seq_length": 128, "max_predictions_per_seq": 20, "dupe_factor": 5}
_SMALL_PRETRAINING = {
    "train_batch_size": 32, "eval_batch_size": 32, "learning_rate": 1e-3, "num_warmup_steps": 500, "warmup_jump": False,
    "jit_compile": True,
}  # fmt: skip
_SMALL_CONFIG = {
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 128,
    "initializer_range": 0.06,
}  # fmt: skip
_SMALL_FINETUNING = {"learning_rate": 5e-4, "train_batch_size": 32, "num_train_epochs": 4.0, "max_seq_length": 128}
_SMALL_HEADS: dict[str, Any] = {"lstm": {"lstm_units": 128}, "features": {"learning_rate": 2e-3}}
_GLUE = ("mnli", "qqp", "qnli", "sst-2", "cola", "sts-b", "mrpc", "rte")
_TINY_SQUAD = {"max_query_length": 29, "doc_stride": 16}  # half of the sequence remains for the context

SCALES = {
    "tiny": Scale(
        shape=Shape(2, 128, 4),
        shapes=((1, 64, 2), (2, 64, 1), (2, 64, 2), (2, 128, 4), (2, 192, 6), (4, 192, 6)),
        vocab_size=4000, config={**_SMALL_CONFIG, "max_position_embeddings": 64},
        records={"max_seq_length": 64, "max_predictions_per_seq": 10, "dupe_factor": 2},
        pretraining={**_SMALL_PRETRAINING, "num_warmup_steps": 50, "eval_batch_size": 64}, steps=2000,
        short_records={"max_seq_length": 16, "max_predictions_per_seq": 4, "masked_lm_prob": 0.25, "dupe_factor": 1},
        short_pretraining={"learning_rate": 6e-4, "num_warmup_steps": 300}, short_share=0.8,
        finetuning={**_SMALL_FINETUNING, "num_train_epochs": 3.0, "max_seq_length": 64}, **_SMALL_HEADS,
        tasks={
            "sst-2": {"num_train_epochs": 0.25, "train_batch_size": 64}, "tagging": {"num_train_epochs": 6.0},
            "tagging on features": {"num_train_epochs": 6.0}, "squad": _TINY_SQUAD, "squad_v2": _TINY_SQUAD,
        },
    ),
    "mini": Scale(
        shape=Shape(4, 256, 4),
        shapes=((1, 256, 4), (2, 256, 1), (2, 256, 4), (4, 256, 4), (4, 384, 6), (8, 384, 6)),
        vocab_size=8000, config=_SMALL_CONFIG, records=_SMALL_RECORDS,
        pretraining={**_SMALL_PRETRAINING, "learning_rate": 5e-4}, steps=40_000,
        finetuning={**_SMALL_FINETUNING, "learning_rate": 2e-4}, **_SMALL_HEADS,
        tasks={"squad": {"doc_stride": 64}, "squad_v2": {"doc_stride": 64}},
    ),
    "base": Scale(
        shape=Shape(12, 768, 12),
        shapes=((3, 768, 12), (6, 768, 3), (6, 768, 12), (12, 768, 12), (12, 1024, 16), (24, 1024, 16)),
        vocab_size=30_522, config={}, records={**_SMALL_RECORDS, "dupe_factor": 10},
        pretraining={"train_batch_size": 256, "learning_rate": 1e-4, "num_warmup_steps": 10_000},
        steps=1_000_000, phase2_steps=100_000,
        finetuning={"train_batch_size": 32, "num_train_epochs": 3.0},
        features={"learning_rate": 1e-3, "num_train_epochs": 10.0},
        tasks={  # the paper does not state its values for tagging; these are within the ranges of its appendix A.3
            **{task: {"grid_learning_rates": ["5e-5", "4e-5", "3e-5", "2e-5"]} for task in _GLUE},
            "squad": {"learning_rate": 5e-5},
            "squad_v2": {"learning_rate": 5e-5, "train_batch_size": 48, "num_train_epochs": 2.0},
            "swag": {"learning_rate": 2e-5, "train_batch_size": 16},
            "tagging": {"learning_rate": 5e-5, "num_train_epochs": 4.0},
        },
    ),
}  # fmt: skip

# By column: the task, its folder below --data_dir, its score and the flags it needs.
COLUMNS: dict[str, tuple[str, str, str, Flags]] = {
    "mnli": ("mnli", "glue/MNLI", "accuracy", {}),
    "qqp": ("qqp", "glue/QQP", "f1", {}),
    "qnli": ("qnli", "glue/QNLI", "accuracy", {}),
    "sst-2": ("sst-2", "glue/SST-2", "accuracy", {}),
    "cola": ("cola", "glue/CoLA", "matthews_correlation", {}),
    "sts-b": ("sts-b", "glue/STS-B", "spearman", {}),
    "mrpc": ("mrpc", "glue/MRPC", "accuracy", {}),
    "rte": ("rte", "glue/RTE", "accuracy", {}),
    "squad": ("squad", "squad", "f1", {}),
    "squad_v2": ("squad_v2", "squad", "best_f1", {}),
    "swag": ("swag", "swag", "accuracy", {}),
    "tagging": ("tagging", "tagging", "f1", {"num_train_epochs": 10.0}),
    "tagging on features": ("tagging", "tagging", "f1", {"num_train_epochs": 10.0, "head": "concat_last_four"}),
}


def _row(name: str, columns: tuple[str, ...], scores: tuple[float, ...], **flags: Any) -> Variant:
    return Variant(name=name, paper=dict(zip(columns, scores, strict=True)), **flags)


def _base_and_large(title: str, columns: tuple[str, ...], *scores: tuple[float, ...]) -> Table:
    """Returns a table with the 4th and 6th size of table 6 as rows. With one tuple of scores, only with the 6th."""
    rows = [
        _row(f"BERT, {size + 1}th size of table 6", columns, values, size=size)
        for size, values in zip((3, 5)[-len(scores) :], scores, strict=True)
    ]
    return Table(title, columns, tuple(rows))


_TABLE_5 = ("mnli", "qnli", "mrpc", "sst-2", "squad")
_TABLE_6 = (PERPLEXITY, "mnli", "mrpc", "sst-2")
_TABLE_8 = ("mnli", "tagging", "tagging on features")
NO_NEXT_SENTENCES = {"next_sentence_prediction": False}
_LEFT_TO_RIGHT = {"left_to_right": True, **NO_NEXT_SENTENCES}


def _masking(rates: str, scores: tuple[float, ...]) -> Variant:
    # The usual rates are the default, so that the tables share the usual model.
    flags = {} if rates == str(BERT_RATES) else {"masking_rates": rates}
    return _row(f"{rates} (MASK/SAME/RND)", _TABLE_8, scores, records=flags)


TABLES = {
    "1": _base_and_large("Table 1: GLUE", _GLUE, (84.6, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4),
                         (86.7, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1)),
    "2": _base_and_large("Table 2: SQuAD v1.1", ("squad",), (88.5,), (90.9,)),
    "3": _base_and_large("Table 3: SQuAD v2.0", ("squad_v2",), (81.9,)),
    "4": _base_and_large("Table 4: SWAG", ("swag",), (81.6,), (86.6,)),
    "5": Table("Table 5: pre-training tasks", (*_TABLE_5, "tagging"), (
        _row("BERT", _TABLE_5, (84.4, 88.4, 86.7, 92.7, 88.5)),
        _row("no NSP", _TABLE_5, (83.9, 84.9, 86.5, 92.6, 87.9), pretraining=NO_NEXT_SENTENCES),
        _row("LTR & no NSP", _TABLE_5, (82.1, 84.3, 77.5, 92.1, 77.8), pretraining=_LEFT_TO_RIGHT),
        _row("LTR & no NSP + BiLSTM", _TABLE_5, (82.1, 84.1, 75.7, 91.6, 84.9), pretraining=_LEFT_TO_RIGHT,
             finetuning={"head": "bilstm"}),
    )),
    "6": Table("Table 6: model size", (*_TABLE_6, "tagging"), (
        _row("1st size (L=3, H=768, A=12)", _TABLE_6, (5.84, 77.9, 79.8, 88.4), size=0),
        _row("2nd size (L=6, H=768, A=3)", _TABLE_6, (5.24, 80.6, 82.2, 90.7), size=1),
        _row("3rd size (L=6, H=768, A=12)", _TABLE_6, (4.68, 81.9, 84.8, 91.3), size=2),
        _row("4th size (L=12, H=768, A=12)", _TABLE_6, (3.99, 84.4, 86.7, 92.9), size=3),
        _row("5th size (L=12, H=1024, A=16)", _TABLE_6, (3.54, 85.7, 86.9, 93.3), size=4),
        _row("6th size (L=24, H=1024, A=16)", _TABLE_6, (3.23, 86.6, 87.8, 93.7), size=5),
    )),
    "7": Table("Table 7: fine-tuning and features", ("tagging",), (
        _row("fine-tuning", ("tagging",), (96.4,)),
        _row("embeddings", ("tagging",), (91.0,), finetuning={"head": "embeddings"}),
        _row("second-to-last hidden", ("tagging",), (95.6,), finetuning={"head": "second_to_last_hidden"}),
        _row("last hidden", ("tagging",), (94.9,), finetuning={"head": "last_hidden"}),
        _row("sum of the last four hidden", ("tagging",), (95.9,), finetuning={"head": "sum_last_four"}),
        _row("last four hidden, concatenated", ("tagging",), (96.1,), finetuning={"head": "concat_last_four"}),
        _row("sum of all layers", ("tagging",), (95.5,), finetuning={"head": "sum_all"}),
    )),
    "figure5": Table("Figure 5: pre-training steps", ("mnli", "sst-2", "mrpc", "tagging"), tuple(
        Variant(name=f"{name}, {share:.0%} of the steps", paper={}, pretraining=flags, share=share)
        for name, flags in (("masked LM", {}), ("left to right", _LEFT_TO_RIGHT))
        for share in (0.2, 0.4, 0.6, 0.8, 1.0)
    )),
    "C.2": Table("Appendix C.2 (table 8): masking", (*_TABLE_8, "sst-2", "mrpc"), (
        _masking("80/10/10", (84.2, 95.4, 94.9)),
        _masking("100/0/0", (84.3, 94.9, 94.0)),
        _masking("80/0/20", (84.1, 95.2, 94.6)),
        _masking("80/20/0", (84.4, 95.2, 94.7)),
        _masking("0/20/80", (83.7, 94.8, 94.6)),
        _masking("0/0/100", (83.6, 94.9, 94.6)),
    )),
}  # fmt: skip
