"""The tables of the paper (arXiv:1810.04805v2) as data: its variants, their flags, and the paper's figures."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from official_bert.data.masking_rates import BERT_RATES

Flags = Mapping[str, Any]

PERPLEXITY = "perplexity"  # of the masked LM on held-out records: a column that no task gives


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """A model's size: layers, hidden size and attention heads."""

    layers: int
    hidden: int
    heads: int

    def __str__(self) -> str:
        return f"L-{self.layers}_H-{self.hidden}_A-{self.heads}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """A row of a table.

    Attributes:
        name: as the page has it.
        paper: the paper's scores, by column.
        records: flags of make-records, beside those of the scale.
        pretraining: flags of pretrain, likewise.
        finetuning: flags of finetune, likewise.
        config: values of bert_config.json, likewise.
        shape: of the model: which of the scale's shapes, by position, or one that all scales share; None for the
            scale's own one.
        share: the share of the steps after which the model is taken.
    """

    name: str
    paper: Flags = dataclasses.field(default_factory=dict)
    records: Flags = dataclasses.field(default_factory=dict)
    pretraining: Flags = dataclasses.field(default_factory=dict)
    finetuning: Flags = dataclasses.field(default_factory=dict)
    config: Flags = dataclasses.field(default_factory=dict)
    shape: int | Shape | None = None
    share: float = 1.0

    @property
    def line(self) -> str:
        """The name without the share: of the line that it is a point of."""
        return self.name.removesuffix(f", {self.share:.0%} of the steps")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A table, or figure.

    Attributes:
        title: what it is about.
        finding: what the paper concludes from it, in our words.
        columns: COLUMNS or PERPLEXITY.
        variants: its rows.
        differs: how ours differs from the paper's, beside the scale.
    """

    title: str
    finding: str
    columns: tuple[str, ...]
    variants: tuple[Variant, ...]
    differs: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Short:
    """The first part of pre-training, on short sequences: attention, spread over few tokens, is learned from sooner.

    It leaves next sentences out, which few tokens do not show.

    Attributes:
        records: flags of make-records, in place of the scale's.
        pretraining: flags of pretrain, likewise; the learning rate stays what it is.
        share: the share of the steps.
    """

    records: Flags
    pretraining: Flags
    share: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """How large an experiment is.

    Attributes:
        shape: of the model.
        shapes: the sizes of table 6, in the paper's order.
        vocab_size: pieces of the vocabulary.
        config: values of bert_config.json beside the shape.
        records: flags of make-records.
        pretraining: flags of pretrain.
        steps: of pre-training.
        short: its first part; None where all sequences are as long as `records` says.
        phase2_steps: of which so many come last, on records of length 512.
        finetuning: flags of finetune.
        lstm: flags of finetune where there is a BiLSTM.
        features: flags of finetune where the encoder is not trained.
        tasks: flags of finetune by column.
    """

    shape: Shape
    shapes: tuple[Shape, ...]
    vocab_size: int
    config: Flags
    records: Flags
    pretraining: Flags
    steps: int
    phase2_steps: int
    finetuning: Flags
    lstm: Flags
    features: Flags
    short: Short | None = None
    tasks: Mapping[str, Flags] = dataclasses.field(default_factory=dict)


def _shapes(*sizes: tuple[int, int, int]) -> tuple[Shape, ...]:
    return tuple(Shape(layers=layers, hidden=hidden, heads=heads) for layers, hidden, heads in sizes)


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
_SMALL_LSTM, _SMALL_FEATURES = {"lstm_units": 128}, {"learning_rate": 2e-3}

SCALES = {
    "tiny": Scale(
        shape=Shape(layers=2, hidden=128, heads=4),
        shapes=_shapes((1, 64, 2), (2, 64, 1), (2, 64, 2), (2, 128, 4), (2, 192, 6), (4, 192, 6)),
        vocab_size=4000, config={**_SMALL_CONFIG, "max_position_embeddings": 64},
        records={"max_seq_length": 64, "max_predictions_per_seq": 10, "dupe_factor": 2},
        pretraining={**_SMALL_PRETRAINING, "num_warmup_steps": 50, "eval_batch_size": 64}, steps=2000,
        short=Short(
            records={"max_seq_length": 16, "max_predictions_per_seq": 4, "masked_lm_prob": 0.25, "dupe_factor": 1},
            pretraining={"learning_rate": 6e-4, "num_warmup_steps": 300}, share=0.8,
        ),
        phase2_steps=0, finetuning={**_SMALL_FINETUNING, "num_train_epochs": 3.0, "max_seq_length": 64},
        lstm=_SMALL_LSTM, features=_SMALL_FEATURES,
        tasks={
            "sst-2": {"num_train_epochs": 0.25, "train_batch_size": 64}, "tagging": {"num_train_epochs": 6.0},
            "tagging on features": {"num_train_epochs": 6.0},
            # Half of the length is left for the context.
            "squad": {"max_query_length": 29, "doc_stride": 16}, "squad_v2": {"max_query_length": 29, "doc_stride": 16},
        },
    ),
    "mini": Scale(
        shape=Shape(layers=4, hidden=256, heads=4),
        shapes=_shapes((1, 256, 4), (2, 256, 1), (2, 256, 4), (4, 256, 4), (4, 384, 6), (8, 384, 6)),
        vocab_size=8000, config=_SMALL_CONFIG, records=_SMALL_RECORDS,
        pretraining={**_SMALL_PRETRAINING, "learning_rate": 5e-4}, steps=40_000, phase2_steps=0,
        finetuning={**_SMALL_FINETUNING, "learning_rate": 2e-4}, lstm=_SMALL_LSTM,
        features=_SMALL_FEATURES,
    ),
    "base": Scale(
        shape=Shape(layers=12, hidden=768, heads=12),
        shapes=_shapes((3, 768, 12), (6, 768, 3), (6, 768, 12), (12, 768, 12), (12, 1024, 16), (24, 1024, 16)),
        vocab_size=30_522, config={}, records={**_SMALL_RECORDS, "dupe_factor": 10},
        pretraining={"train_batch_size": 256, "learning_rate": 1e-4, "num_warmup_steps": 10_000},
        steps=1_000_000, phase2_steps=100_000, finetuning={"learning_rate": 3e-5}, lstm={},
        features={"learning_rate": 1e-3},
    ),
}  # fmt: skip

# The columns: the task, its folder below --data_dir, its score, and flags that it needs.
COLUMNS: dict[str, tuple[str, str, str, Flags]] = {
    "mnli": ("mnli", "glue/MNLI", "accuracy", {}),
    "qqp": ("qqp", "glue/QQP", "f1", {}),
    "qnli": ("qnli", "glue/QNLI", "accuracy", {}),
    "sst-2": ("sst-2", "glue/SST-2", "accuracy", {}),
    "cola": ("cola", "glue/CoLA", "matthews_correlation", {}),
    "sts-b": ("sts-b", "glue/STS-B", "spearman", {}),
    "mrpc": ("mrpc", "glue/MRPC", "accuracy", {}),
    "rte": ("rte", "glue/RTE", "accuracy", {}),
    "squad": ("squad", "squad", "f1", {"doc_stride": 64}),
    "squad_v2": ("squad_v2", "squad", "f1", {"doc_stride": 64}),
    "swag": ("swag", "swag", "accuracy", {}),
    "tagging": ("tagging", "tagging", "f1", {"num_train_epochs": 10.0}),
    "tagging on features": ("tagging", "tagging", "f1", {"num_train_epochs": 10.0, "head": "concat_last_four"}),
}


def _row(name: str, columns: tuple[str, ...], scores: tuple[float, ...], **flags: Any) -> Variant:
    return Variant(name=name, paper=dict(zip(columns, scores, strict=True)), **flags)


_GLUE = ("mnli", "qqp", "qnli", "sst-2", "cola", "sts-b", "mrpc", "rte")
_TABLE_5 = ("mnli", "qnli", "mrpc", "sst-2", "squad")
_TABLE_6 = (PERPLEXITY, "mnli", "mrpc", "sst-2")
_TABLE_8 = ("mnli", "tagging", "tagging on features")
_NO_NSP = {"next_sentence_prediction": False}
_LTR = {"left_to_right": True, **_NO_NSP}


def _rates(rates: str) -> Flags:
    return {} if rates == str(BERT_RATES) else {"masking_rates": rates}  # so that the tables share the usual model


def _figure5(name: str, pretraining: Flags) -> tuple[Variant, ...]:
    return tuple(
        Variant(name=f"{name}, {share:.0%} of the steps", pretraining=pretraining, share=share)
        for share in (0.2, 0.4, 0.6, 0.8, 1.0)
    )


TABLES = {
    "1": Table(
        title="Table 1: GLUE",
        finding="both models are better than the systems before on all tasks, and the larger better than the smaller",
        columns=_GLUE,
        variants=(
            _row("BERT, 4th size of table 6", _GLUE, (84.6, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4), shape=3),
            _row("BERT, 6th size of table 6", _GLUE, (86.7, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1), shape=5),
        ),
        differs="the paper's scores are of the test parts, whose labels are not public, and F1 for MRPC; ours are of "
        "the dev parts",
    ),
    "2": Table(
        title="Table 2: SQuAD v1.1",
        finding="the larger model is better, and both are better than the systems before",
        columns=("squad",),
        variants=(
            _row("BERT, 4th size of table 6", ("squad",), (88.5,), shape=3),
            _row("BERT, 6th size of table 6", ("squad",), (90.9,), shape=5),
        ),
    ),
    "3": Table(
        title="Table 3: SQuAD v2.0",
        finding="the larger model is better than the systems before by 5.1 points of F1 on the test part",
        columns=("squad_v2",),
        variants=(_row("BERT, 6th size of table 6", ("squad_v2",), (81.9,), shape=5),),
    ),
    "4": Table(
        title="Table 4: SWAG",
        finding="the larger model is better, and both are better than the systems before",
        columns=("swag",),
        variants=(
            _row("BERT, 4th size of table 6", ("swag",), (81.6,), shape=3),
            _row("BERT, 6th size of table 6", ("swag",), (86.6,), shape=5),
        ),
    ),
    "5": Table(
        title="Table 5: the tasks of pre-training",
        finding="without next sentences QNLI, MNLI and SQuAD lose; from left to right all lose, MRPC and SQuAD most; a "
        "BiLSTM gives SQuAD some of it back, and hurts GLUE",
        columns=(*_TABLE_5, "tagging"),
        variants=(
            _row("BERT", _TABLE_5, (84.4, 88.4, 86.7, 92.7, 88.5)),
            _row("no NSP", _TABLE_5, (83.9, 84.9, 86.5, 92.6, 87.9), pretraining=_NO_NSP),
            _row("LTR & no NSP", _TABLE_5, (82.1, 84.3, 77.5, 92.1, 77.8), pretraining=_LTR),
            _row("LTR & no NSP + BiLSTM", _TABLE_5, (82.1, 84.1, 75.7, 91.6, 84.9), pretraining=_LTR,
                 finetuning={"head": "bilstm"}),
        ),
        differs="a left-to-right model answers from the vector of the last token, since [CLS] sees nothing; the paper "
        "does not say what it did. Its loss is over all tokens, not over 15 %. Tagging is not in the paper's",
    ),
    "6": Table(
        title="Table 6: the size of the model",
        finding="larger models are better on all tasks, also on that with 3,600 examples",
        columns=(*_TABLE_6, "tagging"),
        variants=tuple(
            _row(name, _TABLE_6, scores, shape=number)
            for number, (name, scores) in enumerate({
                "1st size (L=3, H=768, A=12)": (5.84, 77.9, 79.8, 88.4),
                "2nd size (L=6, H=768, A=3)": (5.24, 80.6, 82.2, 90.7),
                "3rd size (L=6, H=768, A=12)": (4.68, 81.9, 84.8, 91.3),
                "4th size (L=12, H=768, A=12)": (3.99, 84.4, 86.7, 92.9),
                "5th size (L=12, H=1024, A=16)": (3.54, 85.7, 86.9, 93.3),
                "6th size (L=24, H=1024, A=16)": (3.23, 86.6, 87.8, 93.7),
            }.items())
        ),
        differs="tagging is not in the paper's",
    ),
    "7": Table(
        title="Table 7: fine-tuning and features",
        finding="a BiLSTM on frozen features comes near fine-tuning: the last four layers side by side best",
        columns=("tagging",),
        variants=(
            _row("fine-tuning", ("tagging",), (96.4,)),
            *(
                _row(name, ("tagging",), (score,), finetuning={"head": head})
                for name, head, score in (
                    ("embeddings", "embeddings", 91.0),
                    ("second-to-last hidden", "second_to_last_hidden", 95.6),
                    ("last hidden", "last_hidden", 94.9),
                    ("sum of the last four hidden", "sum_last_four", 95.9),
                    ("last four hidden, side by side", "concat_last_four", 96.1),
                    ("sum of all layers", "sum_all", 95.5),
                )
            ),
        ),
        differs="the paper's sums are weighted, ours are plain; the paper's task is CoNLL-2003, ours what the folder "
        "holds. In a model of two layers several of these are the same layers",
    ),
    "figure5": Table(
        title="Figure 5: the steps of pre-training",
        finding="twice the steps (1,000,000 for 500,000) still give about one point of MNLI; masked LM learns slower "
        "than left to right at first, but is better almost at once",
        columns=("mnli", "sst-2", "mrpc", "tagging"),
        variants=(*_figure5("masked LM", {}), *_figure5("left to right", _LTR)),
        differs="the paper's figure has MNLI alone, and gives no numbers to compare with. At the scale tiny, sequences "
        "have 16 tokens up to 80 % of the steps, so that the weights of later positions are learned in the last fifth",
    ),
    "C.2": Table(
        title="Appendix C.2 (table 8): masking",
        finding="fine-tuning is robust against the rates; [MASK] alone hurts the feature-based approach, random tokens "
        "alone hurt all",
        columns=(*_TABLE_8, "sst-2", "mrpc"),
        variants=tuple(
            _row(f"{rates} (MASK/SAME/RND)", _TABLE_8, scores, records=_rates(rates))
            for rates, scores in {
                "80/10/10": (84.2, 95.4, 94.9),
                "100/0/0": (84.3, 94.9, 94.0),
                "80/0/20": (84.1, 95.2, 94.6),
                "80/20/0": (84.4, 95.2, 94.7),
                "0/20/80": (83.7, 94.8, 94.6),
                "0/0/100": (83.6, 94.9, 94.6),
            }.items()
        ),
        differs="the paper's tagging is CoNLL-2003, ours what the folder holds; SST-2 and MRPC are not in the paper's",
    ),
    "curves": Table(
        title="Curves of BERT-Tiny, Mini and Small",
        finding="it has no models of these sizes, which Google released later",
        columns=(PERPLEXITY, "sst-2", "cola", "mrpc", "rte"),
        variants=tuple(
            Variant(name=name, shape=Shape(layers=layers, hidden=hidden, heads=heads), pretraining=rate, config=config)
            for name, layers, hidden, heads, rate, config in (
                ("BERT-Tiny", 2, 128, 2, {}, {}),
                # With the rates and the initial weights of BERT-Tiny these two learn nothing but how common pieces are.
                ("BERT-Mini", 4, 256, 4, {"learning_rate": 3e-4}, {"initializer_range": 0.03}),
                ("BERT-Small", 4, 512, 8, {"learning_rate": 1.5e-4}, {"initializer_range": 0.02}),
            )
        ),
        differs="the shapes are those released; the text, the vocabulary and the steps are not",
    ),
}  # fmt: skip
