"""Every planted bug still fits the source: `make mutants` runs them, this only looks at the list."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.mutants.catalogue import BadMutant, Mutant, mutants
from tests.support import ROOT

FEWEST = 200


@pytest.mark.parametrize("mutant", mutants(), ids=str)
def test_the_bug_can_be_planted(mutant: Mutant) -> None:
    place = mutant.place()
    before = place.read_text("utf-8")
    after = mutant.mutated(before)
    assert after != before
    if place.suffix == ".py":
        compile(after, str(place), "exec")


@pytest.mark.parametrize("mutant", mutants(), ids=str)
def test_its_nearest_tests_exist(mutant: Mutant) -> None:
    paths = [argument for argument in mutant.tests if argument.startswith("tests/")]
    assert paths
    for argument in paths:
        path, *names = argument.split("::")
        assert (ROOT / path).exists(), path
        for name in names:
            assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text("utf-8"), argument


def test_there_are_enough_and_each_id_is_there_once() -> None:
    counted = Counter(map(str, mutants()))
    assert max(counted.values()) == 1
    assert counted.total() >= FEWEST


def test_a_text_that_is_there_twice_or_not_at_all_is_refused() -> None:
    for find, where in (("def ", "times in"), ("no such text", "nowhere")):
        mutant = Mutant("core", "X", "", ("src/holdfast/core/ids.py",), find, "", ())
        with pytest.raises(BadMutant, match=where):
            mutant.place()
