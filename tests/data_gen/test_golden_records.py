"""The golden records can be made anew: by the algorithm as the generator has it, which shares nothing with data_gen."""

import ast
import json
import pathlib

import pytest

from tests.golden import make_pretraining_records

GOLDEN = json.loads(make_pretraining_records.GOLDEN_FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_the_generator_makes_the_golden_records(case: dict[str, object], vocab_file: str):
    assert make_pretraining_records.make_case(case, vocab_file) == case


@pytest.mark.parametrize("case", GOLDEN["real"], ids=lambda case: case["name"])
def test_the_generator_makes_the_golden_records_of_real_text(case: dict[str, object], test_data: pathlib.Path):
    assert make_pretraining_records.make_real_case(case, test_data) == case


def test_the_generator_shares_nothing_with_data_gen():
    tree = ast.parse(pathlib.Path(make_pretraining_records.__file__).read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {module for module in modules if module and module.split(".")[0] in ("official_bert", "data_gen")} == {
        "official_bert.tokenization.exact"
    }
