import pytest

from official_bert.tokenization.exact import FullTokenizer


@pytest.fixture
def tokenizer(vocab_file: str) -> FullTokenizer:
    return FullTokenizer(vocab_file)
