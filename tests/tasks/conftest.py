import pytest

from official_bert.tokenization.fast import FastTokenizer


@pytest.fixture
def tokenizer(vocab_file: str) -> FastTokenizer:
    return FastTokenizer(vocab_file)
