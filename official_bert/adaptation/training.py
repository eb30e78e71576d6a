"""Runs the training from the initial model, and writes adapt.json and the model card (third stage)."""

import dataclasses
import json
import math
import os
import random
from collections.abc import Mapping

from official_bert.adaptation import records
from official_bert.adaptation.options import AdaptationOptions
from official_bert.adaptation.records import Texts
from official_bert.adaptation.words import INITIAL, ORIGINAL, WORDS_FILE
from official_bert.checkpoints.checkpoint import CONFIG_FILE, VOCAB_FILE
from official_bert.checkpoints.loading import ModelAndTokenizer, assign_weights, load_pretraining_model
from official_bert.inference.fill_mask import fill_masks
from official_bert.modeling.config import BertConfig
from official_bert.optimization import distribution
from official_bert.pretraining.evaluation import evaluate
from official_bert.pretraining.model_card import write_model_card
from official_bert.pretraining.options import PretrainingOptions
from official_bert.pretraining.run import PretrainingRun, pretrain
from official_bert.pretraining.run_metadata import read_run_metadata
from official_bert.runs.training_log import EVAL, GENERAL, read_log
from official_bert.tokenization.exact import MASK
from official_bert.utils import files
from official_bert.utils.counting import join_first
from official_bert.utils.markdown import Table

RESULT_FILE, LOSSES_FILE = "adapt.json", "original_losses.json"

_EVALUATION_RECORDS, _CHECKPOINTS_KEPT = 1600, 2
# Options of adapt that pretrain has with the same meaning.
_INPUTS = {"input_file", "output_dir", "vocab_file", "do_lower_case", "strip_accents"}
_SHARED_OPTIONS = {*AdaptationOptions.__dataclass_fields__} & {*PretrainingOptions.__dataclass_fields__} - _INPUTS
_SAMPLES, _MIN_SAMPLE_WORDS, _MAX_SAMPLE_WORDS = 8, 6, 25
_MAX_NEW_WORDS_SHOWN = 100


@dataclasses.dataclass(frozen=True)
class Change:
    """A measurement before the first training step and after the last."""

    before: float
    after: float


@dataclasses.dataclass(frozen=True)
class Adaptation:
    """The losses and words before and after an adaptation. adapt.json has the same content.

    Attributes:
        domain: Masked-LM losses on held-out text of the domain, in nats per prediction.
        general: Masked-LM losses on held-out general text. None without general text.
        tokens_per_word: Mean number of tokens per word of the held-out text, without and with the new words.
        new_words: The words that were added to the vocabulary.
        notes: Reasons, if any, why losses before the training do not show what the original model can do.
    """

    domain: Change
    general: Change | None
    tokens_per_word: Change
    new_words: list[str]
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def losses(self) -> dict[str, Change]:
        """The losses on the held-out text "domain" and, if there is any, "general"."""
        return {"domain": self.domain} | ({"general": self.general} if self.general else {})

    @classmethod
    def read(cls, folder: str) -> "Adaptation":
        """Reads the adapt.json of a folder."""
        values = files.read_json_object(os.path.join(folder, RESULT_FILE))
        changes = {name: values[name] and Change(**values[name]) for name in ("domain", "general", "tokens_per_word")}
        return cls(**{**values, **changes})

    def __str__(self) -> str:
        lines = [f"{name:<8} {_describe_losses(change)}" for name, change in self.losses.items()]
        tokens = f"{self.tokens_per_word.before:.3f} per word before, {self.tokens_per_word.after:.3f} after"
        lines.append(f"tokens   {tokens}, {len(self.new_words):,} words added")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _describe_losses(losses: Change) -> str:
    difference = losses.after - losses.before
    verdict = "better (lower)" if difference < 0 else "worse (higher)" if difference > 0 else "no change"
    return f"masked LM loss {losses.before:.4f} before, {losses.after:.4f} after: {abs(difference):.4f} {verdict}"


def train(options: AdaptationOptions, work: str, passes: int) -> int:
    """Makes records, trains the initial model and writes it to the output folder.

    Returns the process's exit code (see pretrain).

    Args:
        options: The options of adapt.
        work: The working folder, with the texts and models.
        passes: How often the training text is used for records.
    """
    settings = {
        "output_dir": options.output_dir,
        "do_train": True,
        "allow_changes": ["init_checkpoint"],  # It is in the output folder, which may have been moved.
    }
    return pretrain(_prepare_pretraining(options, work, INITIAL, passes, settings))


def write_original_losses(options: AdaptationOptions, work: str) -> None:
    """Computes the held-out losses of the original model, without new words, and writes them to the working folder."""
    # No run is started: nothing is written to this output folder.
    settings = {"output_dir": os.path.join(work, "no_run"), "do_eval": True, "eval_steps": 0}
    evaluation = _prepare_pretraining(options, work, ORIGINAL, 0, settings)
    run = PretrainingRun(evaluation, distribution.get_strategy(evaluation.strategy))
    assert run.initial is not None
    assign_weights(run.pretrainer.model, run.initial.weights)
    losses = {}
    for name, dataset in (("domain", run.records.held_out), ("general", run.records.general)):
        if dataset:
            size, steps = evaluation.eval_batch_size, evaluation.max_eval_steps
            result = evaluate(run.pretrainer, dataset, size, steps, is_stopping=lambda: False)
            assert result is not None
            losses[name] = result[0]["masked_lm_loss"]
            print(f"Masked LM loss with the original vocabulary, {name} text: {losses[name]:.4f}", flush=True)
    files.write_text(os.path.join(work, LOSSES_FILE), json.dumps(losses))


def _prepare_pretraining(
    options: AdaptationOptions, work: str, model: str, passes: int, settings: Mapping[str, object]
) -> PretrainingOptions:
    """Makes the records for a model in the working folder, and returns the options that train or evaluate it."""
    model_folder = os.path.join(work, model)
    values = {
        **records.make_records(options, work, model, passes),
        "bert_config_file": os.path.join(model_folder, CONFIG_FILE),
        "vocab_file": os.path.join(model_folder, VOCAB_FILE),
        "init_checkpoint": model_folder,
        "max_eval_steps": max(1, _EVALUATION_RECORDS // options.train_batch_size),
        "eval_batch_size": options.train_batch_size,
        "next_sentence_prediction": records.read_texts(work).pairs,
        "keep_checkpoint_max": _CHECKPOINTS_KEPT,
        **{name: getattr(options, name) for name in _SHARED_OPTIONS},
        **settings,
    }
    return PretrainingOptions(**values)


def write_result(options: AdaptationOptions, work: str) -> None:
    """Writes the model card and adapt.json after the training. `work` is the working folder."""
    folder = options.output_dir
    texts = records.read_texts(work)
    words = files.read_json_object(os.path.join(work, WORDS_FILE))
    losses_file = os.path.join(work, LOSSES_FILE)
    original_losses = files.read_json_object(losses_file) if files.exists(losses_file) else {}
    result = Adaptation(
        domain=_read_change(folder, EVAL),
        general=_read_change(folder, GENERAL) if "general" in texts.heldout_characters else None,
        tokens_per_word=Change(*(words[f"domain_{when}"] / words["domain_words"] for when in ("before", "after"))),
        new_words=words["new_words"],
    )
    config = BertConfig.from_json_file(os.path.join(folder, CONFIG_FILE))
    result.notes.extend(explain_first_losses(result, config.vocab_size, words["has_masked_lm"]))
    tables = _make_tables(result, texts, words, original_losses)
    samples = _fill_masks(os.path.join(work, records.TEXTS, records.HELDOUT), work, folder, options.random_seed)
    tables["Masks filled in"] = [["sentence", "hidden", "before", "after"], *samples]
    write_model_card(folder, read_run_metadata(folder), tables)
    content = json.dumps(dataclasses.asdict(result), indent=1, ensure_ascii=False)
    files.write_text(os.path.join(folder, RESULT_FILE), content + "\n")


def explain_first_losses(result: Adaptation, vocab_size: int, has_masked_lm: bool) -> list[str]:
    """Returns notes if the losses before the training do not come from a trained masked-LM head.

    Args:
        result: The result, with the losses.
        vocab_size: Number of tokens in the adapted model's vocabulary.
        has_masked_lm: Whether the checkpoint of --init has a masked-LM head.
    """
    notes = []
    if not has_masked_lm:
        notes.append(
            "the weights of --init contain no masked-LM head: the losses before the training come from a new head "
            "with random weights, so the differences do not show what the encoder gained or forgot"
        )
    uniform = math.log(vocab_size)
    for name, change in result.losses.items():
        if change.before > uniform:
            notes.append(
                f"the {name} loss before the training, {change.before:.4f}, is above the loss of a uniform guess, "
                f"ln({vocab_size:,}) = {uniform:.4f}"
            )
    return notes


def _read_change(folder: str, kind: str) -> Change:
    lines = read_log(folder, kind)
    return Change(lines[0]["masked_lm_loss"], lines[-1]["masked_lm_loss"])


def _make_tables(
    result: Adaptation, texts: Texts, words: Mapping[str, float], original_losses: Mapping[str, float]
) -> dict[str, Table]:
    """Returns tables for the model card, by title.

    Args:
        result: The content of adapt.json.
        texts: The sizes of the texts.
        words: Contents of words.json: for each held-out text, the number of words, and of tokens without and with the
            new words.
        original_losses: Losses of the original model, if words were added. Otherwise empty.
    """
    losses = [["held-out text", "characters", "before", "after", "per character before", "per character after"]]
    for name, change in result.losses.items():
        characters = texts.heldout_characters[name]
        # Losses per character compare two vocabularies, losses per token do not.
        before = original_losses.get(name, change.before) * (words[f"{name}_before"] / characters)
        after = change.after * (words[f"{name}_after"] / characters)
        figures = (change.before, change.after, before, after)
        losses.append([name, f"{characters:,}", *(f"{figure:.4f}" for figure in figures)])
    pieces = result.tokens_per_word
    tables: dict[str, Table] = {
        "Masked-LM losses, in nats per prediction and per character of the text": losses,
        "Tokens per word": [["before", "after"], [f"{pieces.before:.3f}", f"{pieces.after:.3f}"]],
    }
    if result.notes:
        tables["Notes on the losses"] = [["note"], *([note] for note in result.notes)]
    if result.new_words:
        shown = join_first(result.new_words, _MAX_NEW_WORDS_SHOWN)
        tables["New words"] = [["number", "words"], [f"{len(result.new_words):,}", shown]]
    return tables


def _fill_masks(heldout_file: str, work: str, output_dir: str, seed: int) -> list[list[str]]:
    """Lets the models before and after the training fill in masked words of held-out sentences.

    Returns:
        For each sentence: its text with a mask, the masked word, and the best candidates before and after.
    """
    rows: list[list[str]] = []
    for folder in (os.path.join(work, INITIAL), output_dir):
        loaded = load_pretraining_model(folder)
        rows = rows or _mask_words(heldout_file, loaded, seed)
        for row, (candidates,) in zip(rows, fill_masks(loaded, [row[0] for row in rows], top_k=3), strict=True):
            row.append(", ".join(f"{each.token} {100 * each.probability:.0f} %" for each in candidates))
    return rows


def _mask_words(path: str, loaded: ModelAndTokenizer, seed: int) -> list[list[str]]:
    """Masks a word in some sentences of usual length that fit into the model.

    Returns:
        For each sentence: its text with a mask, and the masked word, which is a token of the vocabulary.
    """
    rng, tokenizer = random.Random(seed), loaded.tokenizer
    room = loaded.config.max_position_embeddings - 2  # for [CLS] and [SEP]
    found = []
    for sentence in records.read_sentences(path):
        words = tokenizer.basic_tokenizer.tokenize(sentence)
        places = [index for index, word in enumerate(words) if word.isalpha() and word in tokenizer.vocab]
        if _MIN_SAMPLE_WORDS <= len(words) <= _MAX_SAMPLE_WORDS and places and "[" not in sentence:
            place = rng.choice(places)
            text = " ".join([*words[:place], MASK, *words[place + 1 :]])
            if len(tokenizer.tokenize(text, special_tokens=True)) <= room:
                found.append([text, words[place]])
    return rng.sample(found, min(_SAMPLES, len(found)))
