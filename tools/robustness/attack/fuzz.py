"""Tables, JSON, text and checkpoints that hypothesis makes up: they are read, or refused by a UserError, soon."""

import contextlib
import io
import json
import pathlib
import shutil
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import hypothesis
from hypothesis import strategies as st

from official_bert.errors import UserError
from tools.robustness.attack.commands import FINETUNE, MAKE_RECORDS, VOCAB
from tools.robustness.attack.processes import NotHeldError
from tools.robustness.attack.samples import CHECKPOINTS

if TYPE_CHECKING:
    from tools.robustness.attack.campaign import Case

NEEDS = (*FINETUNE.needs, FINETUNE.name, "export", CHECKPOINTS)
_EXAMPLES = 60  # in a case
_LONG = 100_000  # characters of a line, which is not made longer: a file may have 30 MB, and is held as fields
# Of the processor for one of them. What sleeps for ever is found by the case's limit.
_SECONDS, _BYTES_A_SECOND = 10.0, 5e6
_LONGEST_ERROR = 10_100  # characters

# Texts that readers stumble over.
_ODD_TEXTS = (
    "", " ", "\0", "\ufeff", "\r", "\u2028", "\x85", "\ud800", "nan", "NaN", "inf", "-0", "1e999", "9" * 5000, "--3",
    "²", "٣", '"', "'", '"""', "\\", "\t", ";", "a;b", "null", "[" * 2000, "=cmd()", "\u202e", "x" * 100_000, "[MASK]",
    "##", "😀", "\\ud800", "{", "}", "-1", "0x10", "1_000", "True",
)  # fmt: skip
_odd_text = st.sampled_from(_ODD_TEXTS) | st.text(max_size=20)
_odd_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([10**400, -(10**19), 2**31, 2**63, 0, 1, -1])
    | st.floats() | _odd_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_odd_text, inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@st.composite
def _odd_json(draw: st.DrawFn, whole: Any) -> bytes:
    """A JSON text: the right one with a value replaced, dropped or added, or with its text changed."""
    value = json.loads(json.dumps(whole))
    for _ in range(draw(st.integers(1, 3))):
        holder: Any = None
        key: Any = None
        inner = value
        while isinstance(inner, dict | list) and inner and draw(st.integers(0, 4)):
            holder = inner
            key = draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
            inner = holder[key]
        if holder is None:
            value = draw(_odd_value) if draw(st.integers(0, 9)) == 0 else value
            continue
        match draw(st.sampled_from(["replace", "replace", "replace", "drop", "nest", "add"])):
            case "replace":
                holder[key] = draw(_odd_value)
            case "drop":
                del holder[key]
            case "nest":
                holder[key] = [inner]
            case "add" if isinstance(holder, dict):
                holder[draw(_odd_text)] = draw(_odd_value)
    text = json.dumps(value)
    match draw(st.integers(0, 12)):
        case 0:
            text = text[: draw(st.integers(0, len(text)))]
        case 1:
            text = "[" * 200_000 + text
        case 2:
            text = text.replace("1", "1" * 5000, 1)
        case 3:
            text = "\ufeff" + text
        case 4:
            text = '{"a":' * 100_000 + "1" + "}" * 100_000
    return text.encode("utf-8", "surrogatepass")


@st.composite
def _odd_lines(draw: st.DrawFn, lines: list[str], ending: str) -> bytes:
    """Lines of a file, some of which are changed, repeated or left out."""
    lines = list(lines)
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, max(len(lines) - 1, 0)))
        line = lines[at] if lines else ""
        cells = line.split(ending)
        match draw(st.sampled_from(["cell", "cell", "line", "twice", "drop", "join", "bytes", "insert"])):
            case "cell":
                cells[draw(st.integers(0, len(cells) - 1))] = draw(_odd_text)
                lines[at : at + 1] = [ending.join(cells)]
            case "line":
                lines[at : at + 1] = [draw(_odd_text)]
            case "twice":
                lines[at:at] = [line]
            case "drop":
                lines[at : at + 1] = []
            case "join" if len(line) < _LONG:
                lines[at : at + 1] = [ending.join(cells * draw(st.integers(2, 300)))]
            case "insert":
                place = draw(st.integers(0, len(line)))
                lines[at : at + 1] = [line[:place] + draw(_odd_text) + line[place:]]
    text = draw(st.sampled_from(["\n", "\n", "\r\n", "\r"])).join(lines) + draw(st.sampled_from(["\n", "", "\n\n"]))
    content = text.encode("utf-8", "surrogatepass" if draw(st.booleans()) else "ignore")
    if draw(st.integers(0, 7)) == 0:
        place = draw(st.integers(0, len(content)))
        content = content[:place] + draw(st.binary(max_size=8)) + content[place:]
    return content


def attack(case: "Case") -> None:
    """Has hypothesis make up files for one reader."""
    readers = _readers(case.samples.folder, case.folder)
    case.what = sorted(readers)[case.number % len(readers)]
    strategy, path, read = readers[case.what]
    case.tried = 0

    @hypothesis.seed(case.rng.randrange(2**32))
    @hypothesis.settings(max_examples=_EXAMPLES, database=None, deadline=None, derandomize=False, print_blob=False,
                         suppress_health_check=list(hypothesis.HealthCheck),
                         phases=[hypothesis.Phase.generate])  # fmt: skip
    @hypothesis.given(strategy)
    def one(content: bytes) -> None:
        case.tried += 1
        case.done = f"{path.name}: {content[:300]!r}{'...' * (len(content) > 300)}"
        path.write_bytes(content)
        since = time.process_time()
        message = ""
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                read(path)
        except UserError as error:
            message = str(error)
        seconds = time.process_time() - since
        if len(message) > _LONGEST_ERROR:
            raise NotHeldError(f"an error of {len(message):,} characters: {message[:500]}...")
        if seconds > _SECONDS + len(content) / _BYTES_A_SECOND:
            raise NotHeldError(f"{len(content):,} bytes took {seconds:.0f} seconds")

    one()


Reader = tuple[st.SearchStrategy[bytes], pathlib.Path, Callable[[pathlib.Path], Any]]


def _readers(given: pathlib.Path, folder: pathlib.Path) -> dict[str, Reader]:
    """What makes up files, the file to write, and what reads it, by what it is."""
    table_csv = ["label,text", *(f"{'ab'[number % 2]},the cat {number}" for number in range(6))]
    table_tsv = [line.replace(",", "\t") for line in table_csv]
    table_jsonl = [json.dumps({"label": "ab"[number % 2], "text": f"the cat {number}"}) for number in range(6)]
    endings = {f"ending{number}": "a dog" for number in range(4)}
    swag = [json.dumps({"sent1": "the cat", "sent2": "sat", **endings, "label": 1}) for _ in range(3)]
    swag_csv = ["sent1,sent2,ending0,ending1,ending2,ending3,label", *["the cat,sat,a,b,c,d,1"] * 3]
    codah = ["i\tthe cat\ta\tb\tc\td\t1"] * 3
    tags = ["the O", "cat B-X", "", "a O", "dog B-X"]
    glue = ["sentence\tlabel", "the cat\t1", "a dog\t0"]
    conllu = [f"{number}\tcat\tcat\tNOUN\tNN\t_\t0\troot\t_\t_" for number in range(1, 4)]
    answers = [{"text": "cat", "answer_start": 4}]
    squad = {"version": "1", "data": [{"title": "t", "paragraphs": [{"context": "the cat sat", "qas": [
        {"id": "1", "question": "who", "answers": answers, "is_impossible": False}]}]}]}  # fmt: skip
    text = ["the cat sat .", "a dog ran .", "", "the sun"]
    wiki = ['<doc id="1" title="a">', "a", "", "the cat sat . a dog .", "</doc>"]
    documents = [json.dumps({"text": "the cat sat . a dog ran ."}) for _ in range(3)]
    log = [json.dumps({"step": number, "loss": 0.5}) for number in range(4)]
    words = (given / VOCAB).read_text().splitlines()
    readers: dict[str, Reader] = {
        "table, CSV": (_odd_lines(table_csv, ","), folder / "a.csv", _read_table),
        "table, TSV": (_odd_lines(table_tsv, "\t"), folder / "a.tsv", _read_table),
        "table, JSON lines": (_odd_lines(table_jsonl, ","), folder / "a.jsonl", _read_table),
        "table, JSON lines with odd values": (_odd_json_lines(table_jsonl), folder / "a.jsonl", _read_table),
        "texts to predict, CSV": (_odd_lines(table_csv, ","), folder / "a.csv", _read_queries),
        "texts to predict, JSON lines": (_odd_json_lines(table_jsonl), folder / "a.jsonl", _read_queries),
        "SWAG, JSON lines": (_odd_json_lines(swag), folder / "a.jsonl", _read_choices),
        "SWAG, CSV": (_odd_lines(swag_csv, ","), folder / "a.csv", _read_choices),
        "CODAH": (_odd_lines(codah, "\t"), folder / "a.tsv", _read_choices),
        "tags, columns": (_odd_lines(tags, " "), folder / "a.txt", _read_tags),
        "tags, CoNLL-U": (_odd_lines(conllu, "\t"), folder / "a.conllu", _read_tags),
        "GLUE, TSV": (_odd_lines(glue, "\t"), folder / "train.tsv", _read_glue),
        "SQuAD": (_odd_json(squad), folder / "a.json", _read_squad),
        "text, sentences": (_odd_lines(text, " "), folder / "a.txt", _read_text),
        "text, WikiExtractor": (_odd_lines(wiki, " "), folder / "a.txt", _read_text),
        "text, JSON lines": (_odd_json_lines(documents), folder / "a.txt", _read_text),
        "vocabulary": (_odd_lines(words, "#"), folder / "vocab.txt", _read_vocabulary),
        "training log": (_odd_json_lines(log), folder / "train.jsonl", _read_log),
    }  # fmt: skip
    manifest = json.loads((given / MAKE_RECORDS.name / "train.manifest.json").read_text())
    configurations: dict[str, tuple[Any, str, Callable[[pathlib.Path], Any]]] = {
        "bert_config.json": (json.loads((given / "config.json").read_text()), "bert_config.json", _read_config),
        "manifest": (manifest, "train.manifest.json", _read_manifest),
        "task.json": (_json(given, FINETUNE.name, "run", "task.json"), "task.json", _read_task),
    }
    for name, (value, file, read) in configurations.items():
        readers[name] = (_odd_json(value), folder / file, read)
    for name in ("hugging_face", "keras_hub", "tf1", "official_bert"):
        source = given / CHECKPOINTS / name
        for path in sorted(source.rglob("*.json")):
            copy = folder / "checkpoint" / path.relative_to(source)
            readers[f"{name}, {path.name}"] = (_odd_json(json.loads(path.read_text())), copy, _reader_of(source, copy))
    weights = (given / CHECKPOINTS / "hugging_face" / "model.safetensors").read_bytes()
    copy = folder / "checkpoint" / "model.safetensors"
    readers["hugging_face, header of model.safetensors"] = (
        _odd_header(weights), copy, _reader_of(given / CHECKPOINTS / "hugging_face", copy),
    )  # fmt: skip
    return readers


def _json(*parts: Any) -> Any:
    return json.loads(pathlib.Path(*parts).read_text())


@st.composite
def _odd_json_lines(draw: st.DrawFn, lines: list[str]) -> bytes:
    lines = list(lines)
    at = draw(st.integers(0, len(lines) - 1))
    odd = draw(_odd_json(json.loads(lines[at])))
    return b"".join(
        odd.replace(b"\n", b" ") + b"\n" if number == at else f"{line}\n".encode() for number, line in enumerate(lines)
    )


@st.composite
def _odd_header(draw: st.DrawFn, weights: bytes) -> bytes:
    length = int.from_bytes(weights[:8], "little")
    header = draw(_odd_json(json.loads(weights[8 : 8 + length])))
    told = draw(st.sampled_from([len(header), len(header), len(header), 0, 2**63, 2**64 - 1, len(header) + 1]))
    return told.to_bytes(8, "little") + header + weights[8 + length :]


def _reader_of(source: pathlib.Path, changed: pathlib.Path) -> Callable[[pathlib.Path], None]:
    """Reads a checkpoint without checksums of which one file is changed."""
    relative = changed.parts[changed.parts.index("checkpoint") + 1 :]
    folder = changed.parents[len(relative) - 1]
    if not folder.exists() and folder.parent.exists():
        shutil.copytree(source, folder / "", dirs_exist_ok=True)

    def read(path: pathlib.Path) -> None:
        from official_bert.checkpoints import reading
        from tests.checkpoints.checkpoint_samples import assert_fits

        if path.name != "checksums.json":
            (folder / "checksums.json").unlink(missing_ok=True)
        assert_fits(reading.read(str(folder))[1])

    return read


def _read_table(path: pathlib.Path) -> None:
    from official_bert.tasks.all_tasks import make_task
    from official_bert.tasks.options import LABEL_KINDS, TableOptions
    from official_bert.utils.bad_rows import SKIP, STOP, BadRows

    for kind in LABEL_KINDS:
        for policy in (STOP, SKIP):
            with contextlib.suppress(UserError):
                options = TableOptions(train_file=str(path), eval_file=str(path), label_kind=kind)
                task = make_task("table", options)
                for split in (task.train_split, *task.eval_splits):
                    task.read(split, BadRows(policy, silent=True))


def _read_queries(path: pathlib.Path) -> None:
    from official_bert.inference import batch_prediction

    for row in batch_prediction.read_rows(str(path), ["text"], {"text_column": "label,text", "columns": []}):
        row["text"].encode()


def _read_choices(path: pathlib.Path) -> None:
    from official_bert.tasks import multiple_choice
    from official_bert.utils.bad_rows import SKIP, STOP, BadRows

    for policy in (STOP, SKIP):
        with contextlib.suppress(UserError):
            multiple_choice.read(str(path), BadRows(policy, silent=True))


def _read_tags(path: pathlib.Path) -> None:
    from official_bert.tasks import conll
    from official_bert.utils.bad_rows import SKIP, STOP, BadRows

    for policy in (STOP, SKIP):
        with contextlib.suppress(UserError):
            conll.read(str(path), BadRows(policy, silent=True))


def _read_glue(path: pathlib.Path) -> None:
    from official_bert.tasks.all_tasks import make_task
    from official_bert.tasks.options import GlueOptions
    from official_bert.utils.bad_rows import SKIP, BadRows

    task = make_task("sst-2", GlueOptions(data_dir=str(path.parent)))
    task.read(task.train_split, BadRows(SKIP, silent=True))


def _read_squad(path: pathlib.Path) -> None:
    from official_bert.tasks import squad
    from official_bert.utils.bad_rows import SKIP, STOP, BadRows

    for version_2 in (False, True):
        for policy in (STOP, SKIP):
            with contextlib.suppress(UserError):
                squad.read(str(path), version_2, True, BadRows(policy, silent=True))


def _read_text(path: pathlib.Path) -> None:
    from data_gen.text import formats

    for drop in (False, True):
        with contextlib.suppress(UserError):
            for document in formats.read_documents(str(path), drop_invalid_utf8=drop):
                assert document
                assert all(document)


def _read_vocabulary(path: pathlib.Path) -> None:
    from official_bert.tokenization.exact import FullTokenizer, check_special_tokens, load_vocab

    check_special_tokens(load_vocab(str(path)), str(path))
    FullTokenizer(str(path), True).tokenize("the cat unaffable ünï")


def _read_log(path: pathlib.Path) -> None:
    from official_bert.utils.training_log import TRAIN, TrainingLog, read_log

    read_log(str(path.parent), TRAIN)
    TrainingLog(str(path.parent), 2)


def _read_config(path: pathlib.Path) -> None:
    from official_bert.modeling.config import BertConfig

    BertConfig.from_json_file(str(path))


def _read_manifest(path: pathlib.Path) -> None:
    from official_bert.data import manifest

    shard = path.parent / "train-00000-of-00002.tfrecord"
    shard.touch()
    manifest.of_files([str(shard)])


def _read_task(path: pathlib.Path) -> None:
    from official_bert.checkpoints import finetuned

    finetuned.load_task_spec(str(path.parent))
