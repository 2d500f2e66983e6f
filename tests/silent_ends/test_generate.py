"""The generator: the same seed gives the same case, and the cases hold all that is catalogued."""

import ast
import operator

from tests.hash_orders import said_whatever_the_hash
from tests.silent_ends.catalogue import HONEST, SHAPES
from tests.silent_ends.generate import MODEL, case_of, hazards

SEEDS = range(300)
_honest = operator.attrgetter("honest")


def test_a_seed_gives_one_case() -> None:
    code = (
        "import hashlib\nfrom tests.silent_ends.generate import case_of\n"
        "print(hashlib.sha256(repr([case_of(s) for s in range(40)]).encode()).hexdigest())"
    )
    assert said_whatever_the_hash(code)
    assert case_of(3) == case_of(3)
    assert len({case_of(seed).files[MODEL] for seed in SEEDS}) > 0.95 * len(SEEDS)


def test_all_that_is_catalogued_comes_up() -> None:
    cases = [case_of(seed) for seed in SEEDS]
    said = "\n".join(str(case) for case in cases)
    names = [one.name for one in (*hazards(), *HONEST, *filter(_honest, SHAPES))]
    assert len(set(names)) == len(names), "each has a name of its own"
    assert not [name for name in names if name not in said]
    assert sum(case.honest for case in cases) == len(SEEDS) / 2


def test_the_files_are_python_and_an_edit_changes_one() -> None:
    for case in map(case_of, SEEDS):
        for path, text in case.files.items():
            if path.endswith(".py"):
                ast.parse(text, path)
            assert "$" not in text, f"{case}: {path} has a place that is not filled"
        assert case.files.get(case.edit.path) != case.edit.text, case
        assert not case.edit.same_time or case.edit.text is not None
        assert case.cut == tuple(sorted(set(case.cut)))
