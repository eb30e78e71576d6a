import os
import pathlib

import pytest

from official_bert.config import BertConfig

# To be set before TensorFlow is first imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

ROOT = pathlib.Path(__file__).parent.parent

WORDS = """
[PAD] [UNK] [CLS] [SEP] [MASK] a b c d e f g h i j k l m n o p q r s t u v w x y z
##a ##b ##c ##d ##e ##f ##g ##h ##i ##j ##k ##l ##m ##n ##o ##p ##q ##r ##s ##t ##u ##v ##w ##x ##y ##z
the cat dog sat ran on mat in sun ##ing ##ed play walk and . , ! ? un ##aff ##able
""".split()


@pytest.fixture(scope="session")
def test_data() -> pathlib.Path:
    """The folder of real data, or the test is skipped."""
    folder = os.environ.get("OFFICIAL_BERT_TEST_DATA")
    if not folder:
        pytest.skip("OFFICIAL_BERT_TEST_DATA is not set")
    return pathlib.Path(folder)


@pytest.fixture
def vocab_file(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def tiny_config() -> BertConfig:
    return BertConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
    )
