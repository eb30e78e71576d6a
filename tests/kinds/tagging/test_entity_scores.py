import pytest

from official_bert.kinds.tagging import entity_scores


@pytest.mark.parametrize(("tags", "expected"), [
    ("O O", []), ("", []), ("B-X I-X O", [("X", 0, 1)]), ("B-A-B I-A-B", [("A-B", 0, 1)]),
    ("I-X I-X O I-X", [("X", 0, 1), ("X", 3, 3)]),  # IOB1
    ("I-X B-X", [("X", 0, 0), ("X", 1, 1)]),  # IOB1: B only where two entities of one type meet
    ("B-X I-Y I-Y", [("X", 0, 0), ("Y", 1, 2)]), ("B-X B-X I-X", [("X", 0, 0), ("X", 1, 2)]),
    ("S-X B-X E-X S-X", [("X", 0, 0), ("X", 1, 2), ("X", 3, 3)]), ("B-X S-X", [("X", 0, 0), ("X", 1, 1)]),
    ("S-X I-X", [("X", 0, 0), ("X", 1, 1)]),
    ("E-X E-X", [("X", 0, 0), ("X", 1, 1)]), ("B-X E-X I-X", [("X", 0, 1), ("X", 2, 2)]),
    ("B-X I-X L-X O U-Y B-Y L-Y", [("X", 0, 2), ("Y", 4, 4), ("Y", 5, 6)]),  # BILOU
    ("U-X U-X", [("X", 0, 0), ("X", 1, 1)]), ("B-X L-X I-X", [("X", 0, 1), ("X", 2, 2)]),
    ("O B I O B B I", [("", 1, 2), ("", 4, 4), ("", 5, 6)]),  # without types
])  # fmt: skip
def test_entities_are_those_of_conlleval(tags: str, expected: list[entity_scores.Entity]):
    assert entity_scores.entities(tags.split()) == expected


def test_an_entity_is_correct_if_start_end_and_type_match():
    right = ["B-X I-X O B-Y".split(), "B-X O O".split()]
    scores = entity_scores.score(right, ["B-X I-X O B-X".split(), "B-X I-X O".split()])
    assert scores["precision"] == scores["recall"] == scores["f1"] == pytest.approx(1 / 3)
    assert scores["accuracy"] == 5 / 7
    assert (scores["X_precision"], scores["X_recall"]) == (pytest.approx(1 / 3), 1 / 2)
    assert (scores["Y_precision"], scores["Y_recall"], scores["Y_f1"]) == (0.0, 0.0, 0.0)
    assert entity_scores.score(right, right)["f1"] == 1.0
    assert entity_scores.score([["O"]], [["O"]]) == {"precision": 0, "recall": 0, "f1": 0, "accuracy": 1}
    assert entity_scores.score([["B-X"], ["I-X"]], [["B-X"], ["B-X"]])["f1"] == 1.0  # no entity crosses sentences
    without_types = entity_scores.score(["B I O B".split()], ["B I O O".split()])
    assert without_types == {"precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3), "accuracy": 0.75}


@pytest.mark.parametrize(("tags", "scheme"), [
    ("O B-PER I-PER", "IOB1 or IOB2"), ("O I-PER", "IOB1 or IOB2"), ("O B I", "IOB1 or IOB2 without types"),
    ("O B-PER I-PER E-PER S-PER", "BIOES"), ("O S-PER", "BIOES"), ("O B I E S", "BIOES without types"),
    ("O B-PER I-PER L-PER U-PER", "BILOU"), ("O U-PER", "BILOU"), ("O B I L U", "BILOU without types"),
    ("O B-PER M-PER", "BMES"), ("O B-PER M-PER E-PER S-PER", "BMES"), ("B M E S", "BMES without types"),
    ("O B-PER M-PER E-PER W-PER", "BMEWO"), ("O B_PER I_PER", "IOB1 or IOB2 (written as in B_PER)"),
    ("O PER-B PER-I", "IOB1 or IOB2 (written as in PER-B)"), ("O PER_S PER_B PER_E", "BIOES (written as in PER_B)"),
    ("NOUN VERB", None), ("O", None), ("B-PER I-PER", None), ("O B-PER NOUN", None), ("O B-PER I", None),
    ("O B-PER L-PER E-PER", None), ("O B_PER I-PER", None), ("O PER-B PER", None), ("O B-PER M-PER U-PER", None),
    ("O B-", None),
])  # fmt: skip
def test_entity_tagging_schemes_are_distinguished_from_other_tags(tags: str, scheme: str | None):
    found = entity_scores.detect_scheme(tags.split())
    assert (found and found.name) == scheme


@pytest.mark.parametrize("tags", [
    "B-X M-X E-X O S-Y B-Y E-Y S-Y", "B-X M-X E-X O W-Y B-Y E-Y W-Y", "B_X I_X I_X O B_Y B_Y I_Y B_Y",
    "X-B X-I X-I O Y-B Y-B Y-I Y-B",
])  # fmt: skip
def test_every_tagging_scheme_gives_the_same_entities(tags: str):
    scheme = entity_scores.detect_scheme(tags.split())
    right = [("X", 0, 2), ("Y", 4, 4), ("Y", 5, 6), ("Y", 7, 7)]
    assert entity_scores.entities(tags.split(), scheme) == right
    cut = [*tags.split()[:6], "O", tags.split()[7]]
    scores = entity_scores.score([tags.split()], [cut], scheme)
    assert (scores["f1"], scores["X_f1"], scores["accuracy"]) == (0.75, 1.0, 0.875)
