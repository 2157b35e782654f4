"""Each of a hundred files as people have them works, is mended with a word, or is refused with the right sentence."""

import pytest

from timetrial.scripts.measure import own_data_files
from timetrial.scripts.measure.own_data_cases import all_cases
from timetrial.scripts.measure.own_data_cases.case import REFUSED

CASES = list(all_cases())


def test_there_are_a_hundred():
    assert len({(case.kind, case.title) for case in CASES}) == len(CASES) > 100


@pytest.mark.integration
@pytest.mark.parametrize("kind", sorted({case.kind for case in CASES}))
def test_each_gets_what_it_should(tmp_path, kind):
    wrong = []
    for number, case in enumerate(case for case in CASES if case.kind == kind):
        found = own_data_files.attempt(kind, case.write(tmp_path / str(number)))
        if found["is_refused"] != (case.outcome == REFUSED) or case.says not in found["said"]:
            wrong.append((case.title, found["said"]))
    assert not wrong
