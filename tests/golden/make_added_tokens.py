"""Writes added_tokens.json: the ids that Hugging Face's tokenizers give for texts with added tokens.

Run it where transformers is installed: python -m tests.golden.make_added_tokens
"""

import json
import pathlib
import string
import tempfile

PATH = pathlib.Path(__file__).with_name("added_tokens.json")

WORDS = ["hello", "world", "user", "the", "cat", "new", "brand", "co", "##vid", "gp", "##u", "Hello", "é", "e\u0301"]
LETTERS = [*string.ascii_letters, *string.digits, *"éüïΣσς中国日한", *"İı"]
PIECES = [*WORDS, *string.punctuation, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
VOCABULARY = list(dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PIECES]))

CONTENTS = "[E1]|[E10]|<user>|<url>|[Brand New]|covid|GPU|Ünïx|中国|ab|bcd|user>x|@@|@@@|<user>+|<Σ>|world".split("|")
SPECIAL, NOT_NORMALIZED = {"[E1]", "[E10]", "<url>", "GPU", "<Σ>"}, {"[E1]", "[E10]", "<url>", "GPU", "@@", "@@@"}
ADDED: list[dict[str, object]] = [
    {"content": each, "special": each in SPECIAL, "normalized": each not in NOT_NORMALIZED} for each in CONTENTS
]
ADDED[CONTENTS.index("<url>")] |= {"lstrip": True, "rstrip": True}

TEMPLATES = (
    "{0}|{0} hello the cat|hello the cat {0}|hello {0} cat|hello{0}cat|hello, {0}!|({0})|-{0}-|{0}{0}|{0} {1} cat|"
    "{0}{1}|the{1}{0}, cat|{0}s|un{0}|hello\t{0}\n{1}|日{0}日|é{0}\u0301e|\u200d{0}\u0000{1}|Hello {0}. {1}?"
).split("|")

OTHERS = (
    "| |hello world|abcd|abcabcd|[E1|E1]|[E 1]|[e10]|< user >|<us\u200der>|brand new|[Brand  New]|[brand\tnew]|unix|"
    "u\u0308ni\u0308x|ÜNÏX|co-vid|COVIDS|中 国|中国国|@ @|@@@@@|<user>x|<<user>>|[MASK] [E1]|<σ>|<ς>|ΑΣ<Σ>|[E1]\u0301|"
    "gpu GPUs gPU|İ<user>İ"
).split("|")


def make_texts() -> list[str]:
    """Returns texts with each added token in each place, unchanged and in another case."""
    texts = [*OTHERS]
    for index, content in enumerate(CONTENTS):
        for number, template in enumerate(TEMPLATES):
            changed = (content, content.upper(), content.lower())[(index + number) % 3 if number % 2 else 0]
            texts.append(template.format(changed, CONTENTS[(index + number) % len(CONTENTS)]))
    return list(dict.fromkeys(texts))


def write_folder(folder: pathlib.Path, do_lower_case: bool, strip_accents: bool | None) -> None:
    """Writes a vocabulary and settings as version 4 of transformers did for a slow tokenizer."""
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCABULARY), encoding="utf-8")
    numbers = {token: number for number, token in enumerate(VOCABULARY)}
    new = [content for content in CONTENTS if content not in numbers]
    numbers |= {content: len(VOCABULARY) + number for number, content in enumerate(new)}
    defaults = {"lstrip": False, "rstrip": False, "single_word": False}
    decoder = {str(numbers[token["content"]]): {**defaults, **token} for token in ADDED}
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": do_lower_case, "strip_accents": strip_accents}
    settings["added_tokens_decoder"] = decoder
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text('{"model_type": "bert"}')


def compute_ids(do_lower_case: bool, strip_accents: bool | None) -> list[list[int]]:
    """Returns the ids that transformers gives for each text, without [CLS] and [SEP]."""
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        write_folder(pathlib.Path(folder), do_lower_case, strip_accents)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        return [tokenizer.encode(text, add_special_tokens=False) for text in make_texts()]


def main() -> None:
    cases = [(True, None), (False, None), (True, False)]
    values = [{"do_lower_case": case[0], "strip_accents": case[1], "ids": compute_ids(*case)} for case in cases]
    contents = {"vocabulary": VOCABULARY, "added_tokens": ADDED, "texts": make_texts(), "cases": values}
    PATH.write_text(json.dumps(contents, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
