import re

import numpy as np
import pytest

from official_bert.tasks.heads import choices as head
from official_bert.tasks.heads.choices import Example
from official_bert.tokenization.exact import FullTokenizer
from tests.make import refusal

ENDINGS = ("The dog ran", "The dog sat", "The dog walked", "The dog played")


def test_each_ending_is_packed_with_the_prompt(vocab_file: str):
    tokenizer = FullTokenizer(vocab_file)
    example = Example("the cat sat", ("on the mat", "in sun", "ran", "walked"), 0)
    packed, is_cut = head.pack(example, tokenizer, 7)
    assert is_cut
    assert head.pack(example, tokenizer, 8)[1]  # the first ending, not the last
    assert not head.pack(example, tokenizer, 9)[1]
    tokens = [" ".join(tokenizer.convert_ids_to_tokens(ids)) for ids, _ in packed]
    assert tokens == [
        "[CLS] the cat [SEP] on the [SEP]",
        "[CLS] the cat [SEP] in sun [SEP]",
        "[CLS] the cat sat [SEP] ran [SEP]",
        "[CLS] the cat [SEP] walk ##ed [SEP]",
    ]
    assert [segments for _, segments in packed] == [[0] * 4 + [1] * 3] * 2 + [[0] * 5 + [1] * 2, [0] * 4 + [1] * 3]


def test_the_highest_score_is_the_choice():
    choices = head.chosen(np.array([[0, 3, 1, 2.0], [9, 3, 1, 2.0]]))
    assert choices == [1, 0]
    examples = [Example("p", ENDINGS, label) for label in (1, 2)]
    assert head.accuracy(choices, examples) == 0.5
    assert "example 0 has no label" in refusal(head.accuracy, [1], [Example("p", ENDINGS, None)])


@pytest.mark.parametrize(("x", "message"), [
    (["a", "b"], r"x\[0\] is 'a'; expected a prompt and its 4 endings"),
    ([("a", None)], r"x\[0\] is None; expected several"),
    ((["a", "b"], [ENDINGS]), r"there are 2 examples and 1 values in x\[1\]"),
    ([("a", ENDINGS[:3])], r"x\[0\] has 3 endings; expected 4"),
])  # fmt: skip
def test_rows_that_are_no_prompt_with_endings_are_named(x, message: str):
    assert re.search(message, refusal(head.MultipleChoiceHead().examples, x, None))
