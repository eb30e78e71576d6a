"""Draws the masking of one sentence, computed by the code itself: `python docs/figures/masking.py`."""

import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from drawing import BLUE, GRAY, GREEN, MUTED, ORANGE, Drawing, write

from data_gen.rules.masking import MaskingVocabulary, mask, number_to_predict
from official_bert.tokenization.exact import FullTokenizer

SENTENCE = "The embeddings of unaffable words were normalized before training."
PIECES = """[PAD] [UNK] [CLS] [SEP] [MASK] . the of were before training words un ##aff ##able normal ##ized em ##bed
##dings queen runs green""".split()
SEED = 301


def mask_sentence() -> tuple[list[str], list[str], list[int]]:
    """Returns the tokens of the sentence, the tokens after masking, and the positions to predict."""
    vocab = {piece: number for number, piece in enumerate(PIECES)}
    tokenizer = FullTokenizer.from_vocab(vocab)
    tokens = ["[CLS]", *tokenizer.tokenize(SENTENCE), "[SEP]"]
    ids = tokenizer.convert_tokens_to_ids(tokens)
    budget = number_to_predict(len(ids), 0.2, 20)
    masked, positions, _ = mask(ids, budget, MaskingVocabulary.from_vocab(vocab), False, random.Random(SEED))
    return tokens, tokenizer.convert_ids_to_tokens(masked), positions


def draw() -> Drawing:
    """Returns the picture."""
    tokens, masked, positions = mask_sentence()
    columns = (len(tokens) + 1) // 2
    drawing = Drawing(
        columns * 88 + 20,
        350,
        f"The sentence '{SENTENCE}' as word pieces. "
        + "; ".join(f"{tokens[i]} becomes {masked[i]}" for i in positions)
        + ". The model predicts the original pieces at these positions.",
    )
    drawing.text(10, 24, SENTENCE, 14, "start")
    for number, (token, shown) in enumerate(zip(tokens, masked, strict=True)):
        x, y = 10 + number % columns * 88, 45 + number // columns * 150
        is_chosen = number in positions
        drawing.box(x, y, 82, 32, token, GREEN if is_chosen else GRAY)
        drawing.arrow((x + 41, y + 34), (x + 41, y + 58))
        kept = "kept" if shown == token else "random"
        color = ORANGE if is_chosen else BLUE
        drawing.box(x, y + 60, 82, 32, shown, color)
        if is_chosen:
            drawing.text(x + 41, y + 110, "masked" if shown == "[MASK]" else kept, 12, color=MUTED)
    return drawing


if __name__ == "__main__":
    write(__file__, draw())
