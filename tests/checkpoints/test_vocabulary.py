import pytest

from official_bert.checkpoints.checkpoint import LoadOverrides
from official_bert.checkpoints.vocabulary import FoundTokenizer, Tokenizer, resolve_tokenizer
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.tokenization.casing import UNCASED
from official_bert.tokenization.exact import SPECIAL_TOKENS
from tests.tokenization.test_exact import ACCENTED


def test_the_accent_flags_apply_if_no_file_states_the_casing(tiny_config: BertConfig):
    vocab = "\n".join([*SPECIAL_TOKENS, "über", "a"]) + "\n"
    found = FoundTokenizer("model", {"vocab.txt": vocab}, None, "tokenizer_config.json")

    def resolve(**given: bool) -> Tokenizer:
        return resolve_tokenizer(found, LoadOverrides(**given), tiny_config)

    assert resolve().casing == UNCASED
    assert "it has pieces with accents, which --nostrip_accents keeps in texts" in "".join(resolve().notes)
    assert resolve(strip_accents=False).casing == ACCENTED
    assert "--nostrip_accents" not in "".join(resolve(strip_accents=False).notes)
    with pytest.raises(UserError, match='write {"do_lower_case": false} to tokenizer_config.json'):
        resolve(do_lower_case=False, strip_accents=False)
    with pytest.raises(UserError, match="strip_accents is true, but do_lower_case is false"):
        resolve(do_lower_case=False, strip_accents=True)
