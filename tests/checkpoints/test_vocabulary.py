import pathlib

from official_bert.checkpoints.vocabulary import is_uncased


def test_released_vocabularies_tell_their_casing(test_data: pathlib.Path):
    for path in (test_data / "vocab").iterdir():
        assert is_uncased(path.read_text()) == ("-cased" not in path.name), path.name
