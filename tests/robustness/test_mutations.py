"""The list of mutations fits the code; `make mutations` tries them."""

import pytest

from robustness.mutations import MUTATIONS, Mutation
from tests.conftest import ROOT


def test_there_are_enough_mutations_and_none_twice():
    assert len({(each.path, each.new) for each in MUTATIONS}) == len(MUTATIONS) >= 60


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: f"{each.path}: {each.old[:40]}")
def test_each_mutation_changes_one_place_and_names_tests_that_are_there(mutation: Mutation):
    assert (ROOT / mutation.path).read_text(encoding="utf-8").count(mutation.old) == 1
    assert mutation.old != mutation.new
    assert all((ROOT / name.split("::")[0]).exists() for name in mutation.tests.split())
