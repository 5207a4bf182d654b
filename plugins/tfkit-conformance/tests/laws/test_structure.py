"""What a stored case of a law may hold: all that the law draws itself, and nothing that no machine could hold."""

import re
from random import Random

import pytest

from tfkit_conformance.finding import Inconclusive
from tfkit_conformance.laws.check import LAWS, misfit
from tfkit_conformance.laws.law import Excluded, part_under_test
from tfkit_conformance.laws.options import variants


@pytest.mark.parametrize("slot", LAWS)
def test_every_case_that_a_law_draws_may_be_stored(slot, catalogue):
    drawn = 0
    for name in catalogue.names(slot):
        if (slot, name) == ("score", "dot"):  # it has no code of its own
            continue
        subject = part_under_test(catalogue, slot, catalogue.find(slot, name))
        for options in variants(catalogue, subject.entry):
            for law in LAWS[slot]:
                for seed in range(100, 106) if law.applies(subject, options) else ():
                    try:
                        at = law.draw(subject, options, Random(seed))
                    except (Inconclusive, Excluded):
                        continue
                    drawn += 1
                    assert misfit(law, subject, options, at) == "", (law.name, name, at)
    assert drawn > 50


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"width": 0}, "`at.width` is 0, not a number from 2 to 262144"),
        ({"width": 1 << 20}, "`at.width` is 1048576"),
        ({"width": 1 << 17, "tokens": 1 << 17}, "the sizes in `at` multiply to 17,179,869,184, more than 4,294,967,296"),
        ({"width": "4"}, r"`at` of the law `tokens` needs `scale` \(int\)"),
        ({"width": True}, "needs .*`width`"),
        ({"more": []}, "`at.more` is no whole number"),
        ({"more": "x" * 101}, "`at.more` is no whole number"),
        ({"more": [1]}, "`at.more` is no whole number"),
        ({"more": {}}, "`at.more` is no whole number"),
    ],
)
def test_a_structure_that_no_law_draws_is_an_error(change, said, catalogue):
    subject = part_under_test(catalogue, "norm", catalogue.find("norm", "rms_norm"))
    law = next(law for law in LAWS["norm"] if law.name == "tokens")
    options = variants(catalogue, subject.entry)[0]
    at = law.draw(subject, options, Random(0))
    assert misfit(law, subject, options, at) == ""
    assert re.search(said, misfit(law, subject, options, {**at, **change}))
