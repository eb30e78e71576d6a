"""From weights and text to an adapted model, in stages that a kill does not undo.

In the output folder, the folder `adaptation` holds what the stages leave for each other; each appears whole:

1. texts: what is trained on and what is held out, with the options.
2. initial: the weights with new words and heads; original: without new words, to compare with.
3. records: made as for pre-training.
4. The training itself is a run of pre-training in the output folder.
5. adapt.json ends it. Texts held out and options stay, the rest is removed.
"""

import contextlib
import json
import os
from collections.abc import Sequence
from typing import Any

from data_gen.text import word_boundaries
from data_gen.vocabulary.report import measure
from official_bert.adaptation import records, report, texts, training, weights, words
from official_bert.adaptation.options import Options
from official_bert.adaptation.report import RESULT_FILE, Adaptation, Change
from official_bert.adaptation.texts import Texts
from official_bert.checkpoints.checkpoint import CONFIG_FILE, VOCAB_FILE
from official_bert.checkpoints.model_files import find_tokenizer
from official_bert.checkpoints.vocabulary import lines_of
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.pretraining.model_card import write_model_card
from official_bert.pretraining.run_metadata import read_run_metadata
from official_bert.runs import run_file
from official_bert.runs.locks import lock_folder
from official_bert.runs.training_log import EVAL, GENERAL, read_log
from official_bert.tokenization.casing import UNCASED, Casing
from official_bert.tokenization.exact import parse_vocab
from official_bert.utils import files, row_files
from official_bert.utils.counting import counted

_WORK, _TEXTS, _INITIAL, _ORIGINAL, _RECORDS = "adaptation", "texts", "initial", "original", "records"
_OPTIONS_FILE, _CONTENTS_FILE = "options.json", "contents.json"  # both of the texts
_WORDS_FILE, _LOSSES_FILE = "words.json", "original_losses.json"
_MOST_PROPOSED = 3000


def adapt(init: str, input_file: str | Sequence[str], output_dir: str, **options: Any) -> Adaptation:
    """Trains a model on text of one's own, and measures what it gains and what it forgets.

    Called again with the same arguments after it was stopped, it goes on.

    Args:
        init: the weights: a checkpoint of any format, or a name (hf://, google://).
        input_file: text files or glob patterns.
        output_dir: the folder of the adapted model, which all that takes checkpoints reads.
        **options: the other flags of `official-bert adapt`, by name: new_words=300, general_file=["wiki.txt"], ...

    Returns:
        Losses before and after, tokens a word, and the new words, as adapt.json in the folder holds them.

    Raises:
        UserError: something is missing, damaged, or does not fit together.
    """
    lists = {
        name: [value] if isinstance(value, str) else value
        for name, value in options.items()
        if name in ("general_file", "exclude_texts")
    }
    patterns = [input_file] if isinstance(input_file, str) else list(input_file)
    code = run(Options(init=init, input_file=patterns, output_dir=output_dir, **{**options, **lists}))
    if code:
        raise KeyboardInterrupt(f"stopped; the same call goes on in {output_dir}")
    return Adaptation.read(output_dir)


def run(options: Options) -> int:
    """Adapts as the options say; returns the process's exit code, which is not 0 where a signal stopped the training.

    Raises:
        UserError: something is missing, damaged, or does not fit together; what is wrong from the beginning leaves
            nothing behind.
    """
    work = os.path.join(options.output_dir, _WORK)
    try:
        with lock_folder(work, "output_dir"):
            return _run(options, work)
    finally:
        with contextlib.suppress(OSError):  # it is not empty
            os.rmdir(options.output_dir)


def _run(options: Options, work: str) -> int:
    _check_folder(options, work)
    if not files.exists(os.path.join(options.output_dir, RESULT_FILE)):
        initial = os.path.join(work, _INITIAL)
        if not files.exists(initial):
            _begin(options, work)
        options = options.resolved(BertConfig.from_json_file(os.path.join(initial, CONFIG_FILE)))
        code = _train(options, work)
        if code:
            return code
        _finish(options, work)
    else:
        print("this adaptation is complete already")
    _remove_work(work)
    print(Adaptation.read(options.output_dir))
    return 0


def _check_folder(options: Options, work: str) -> None:
    """Raises a UserError if the output folder holds something else than this adaptation, begun with these options."""
    begun = os.path.join(work, _TEXTS, _OPTIONS_FILE)
    if files.exists(begun):
        changes = run_file.find_changes(run_file.read_run_file(begun), run_file.locked_values(options))
        run_file.refuse_changes(options.output_dir, changes, "Pass the same options, or another --output_dir.")
        held = files.read_json_object(os.path.join(work, _TEXTS, _CONTENTS_FILE))
        for flag, patterns in _read_files(options).items():
            row_files.check_unchanged(held[flag], patterns, flag)
        kept = os.path.join(work, _WORDS_FILE)
        if options.new_words_file and files.exists(options.new_words_file) and files.exists(kept):
            before, now = files.read_json_object(kept)["new_words"], words.read_new_words(options.new_words_file)
            if before != now:
                raise UserError(
                    f"--new_words_file has changed since: {options.new_words_file} has {counted(len(now), 'word')}, "
                    f"which are not the {len(before):,} of before; restore it, or give another --output_dir"
                )
        return
    others = sorted(set(os.listdir(options.output_dir)) - {_WORK})
    if others:
        raise UserError(
            f"{options.output_dir} holds other files ({others[0]}); give --output_dir as a new or empty folder"
        )


def _read_files(options: Options) -> dict[str, list[str]]:
    """Returns the flags that name text, with the files or patterns that each is given as."""
    named = {name: getattr(options, name) for name in ("input_file", "general_file", "exclude_texts")}
    return {flag: patterns for flag, patterns in named.items() if patterns}


def _begin(options: Options, work: str) -> None:
    """The stages up to the initial weights; all that can be wrong with the options is found before text is read."""
    checkpoint, lines = weights.read(options)
    options.resolved(checkpoint.config)
    new_words = words.read_new_words(options.new_words_file) if options.new_words_file else []
    weights.with_words(checkpoint, new_words)
    word_boundaries.load(options.word_boundaries)
    print("\n".join(lines), flush=True)
    text_folder = os.path.join(work, _TEXTS)
    if not files.exists(text_folder):
        with files.folder_written_whole(text_folder) as beside:
            texts.prepare(options, beside)
            contents = {
                flag: row_files.contents(row_files.expand(patterns, flag))
                for flag, patterns in _read_files(options).items()
            }
            files.write_text(os.path.join(beside, _CONTENTS_FILE), json.dumps(contents))
            run_file.write_run_file(os.path.join(beside, _OPTIONS_FILE), run_file.locked_values(options))
    vocab, casing = str(checkpoint.vocab), checkpoint.casing
    counts = words.count(os.path.join(text_folder, texts.DOMAIN), casing)
    if not counts.counts:
        raise UserError("the text holds no words; give other text")
    print(words.describe(vocab, counts.counts), flush=True)
    if not options.new_words_file:
        proposals = words.propose(vocab, counts.counts, max(options.new_words, _MOST_PROPOSED))
        figures = measure(parse_vocab(vocab), counts.counts)
        print(words.describe_proposals(proposals, figures, sum(counts.counts.values())), flush=True)
        new_words = [each.word for each in proposals[: options.new_words]]
        if len(new_words) < options.new_words:
            print(f"warning: {options.new_words:,} words were to be added, but there are only {len(new_words):,}")
    grown = weights.with_words(checkpoint, new_words)
    _write_words(work, text_folder, vocab, str(grown.vocab), casing, new_words, counts)
    if new_words:
        taken = len(new_words) - (len(lines_of(str(grown.vocab))) - len(lines_of(vocab)))
        print(f"{len(new_words):,} words added, {taken:,} of them in the places of unused pieces", flush=True)
        _write_once(checkpoint, options.random_seed, os.path.join(work, _ORIGINAL))
    _write_once(grown, options.random_seed, os.path.join(work, _INITIAL))


def _write_once(checkpoint: Any, seed: int, folder: str) -> None:
    if not files.exists(folder):
        weights.write(checkpoint, seed, folder)


def _write_words(
    work: str, text_folder: str, before: str, after: str, casing: Casing, new_words: list[str], counts: Any
) -> None:
    """Keeps what the tokenizer makes of the texts, before and after words were added to its vocabulary."""
    facts: dict[str, Any] = {"new_words": new_words}
    for name, file in (("heldout", texts.HELDOUT), ("general", texts.GENERAL_HELDOUT)):
        path = os.path.join(text_folder, file)
        if files.exists(path):
            held = words.count(path, casing).counts
            facts[f"{name}_words"] = sum(held.values())
            for when, vocab in (("before", before), ("after", after)):
                facts[f"{name}_{when}"] = measure(parse_vocab(vocab), held).pieces_per_word * sum(held.values())
    figures = measure(parse_vocab(after), counts.counts)
    facts["tokens"] = figures.pieces_per_word * sum(counts.counts.values()) * 2**counts.halvings
    files.write_text(os.path.join(work, _WORDS_FILE), json.dumps(facts))


def _train(options: Options, work: str) -> int:
    """The stages from records to the trained model; returns the process's exit code."""
    facts = texts.read(os.path.join(work, _TEXTS))
    found = files.read_json_object(os.path.join(work, _WORDS_FILE))
    number = records.passes(options, found["tokens"] / (1 - facts.general_share))
    print(
        f"{options.num_train_steps:,} steps (--num_train_steps) of {options.train_batch_size} records "
        f"(--train_batch_size), learning rate up to {options.learning_rate:.2g} (--learning_rate), "
        f"{options.num_warmup_steps:,} steps of warm-up (--num_warmup_steps), the text used {number} times "
        "(--dupe_factor)",
        flush=True,
    )
    made = _records(options, facts, work, _INITIAL, number)
    losses_file = os.path.join(work, _LOSSES_FILE)
    if found["new_words"] and not files.exists(losses_file):
        original = os.path.join(work, _ORIGINAL)
        heldout = _records(options, facts, work, _ORIGINAL, 0)
        losses = training.losses(options, facts, heldout, original, os.path.join(work, "no_run"))
        for name, loss in losses.items():
            print(f"with its own vocabulary the model has a masked LM loss of {loss:.4f} on {name} text", flush=True)
        files.write_text(losses_file, json.dumps(losses))
    return training.train(options, facts, made, os.path.join(work, _INITIAL))


def _records(options: Options, facts: Texts, work: str, model: str, number: int) -> records.Records:
    model_folder = os.path.join(work, model)
    casing = find_tokenizer(model_folder).casing or UNCASED
    folder = os.path.join(work, _RECORDS, model)
    files.make_folder(folder)
    vocab_file = os.path.join(model_folder, VOCAB_FILE)
    return records.make(options, facts, os.path.join(work, _TEXTS), vocab_file, casing, number, folder)


def _finish(options: Options, work: str) -> None:
    """Writes the model card, and at last adapt.json."""
    facts, folder = texts.read(os.path.join(work, _TEXTS)), options.output_dir
    found = files.read_json_object(os.path.join(work, _WORDS_FILE))
    losses_file = os.path.join(work, _LOSSES_FILE)
    original_losses = files.read_json_object(losses_file) if files.exists(losses_file) else {}
    pieces = Change(*(found[f"heldout_{when}"] / found["heldout_words"] for when in ("before", "after")))
    domain = _change(folder, EVAL)
    general = _change(folder, GENERAL) if facts.general_heldout_characters else None
    result = Adaptation(domain, general, pieces, found["new_words"])
    heldout = os.path.join(work, _TEXTS, texts.HELDOUT)
    samples = report.filled_masks(heldout, os.path.join(work, _INITIAL), folder, options.random_seed)
    tables = report.sections(result, facts, found, original_losses, samples)
    write_model_card(folder, read_run_metadata(folder), tables)
    result.write(folder)


def _change(folder: str, kind: str) -> Change:
    lines = read_log(folder, kind)
    return Change(lines[0]["masked_lm_loss"], lines[-1]["masked_lm_loss"])


def _remove_work(work: str) -> None:
    """Removes what a finished adaptation needs no more: all but the options, what was held out, and the words."""
    for name in (_INITIAL, _ORIGINAL, _RECORDS):
        files.remove_folder(os.path.join(work, name))
    for name in (texts.DOMAIN, texts.GENERAL):
        files.remove(os.path.join(work, _TEXTS, name))
