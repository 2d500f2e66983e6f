"""Each house rule sees a planted offender and lets an innocent pass: none of them is blind."""

import pytest

from tests.tidy import rules
from tests.tidy.tree import Source

LONG_FUNCTION = "def f():\n" + "    x = 1\n" * 70

OFFENDERS = [
    (rules.file_length, "bamboo/core/machine.py", "x = 1\n" * 601),
    (rules.file_length, "bamboo/runtime/step/executor.py", "x = 1\n" * 201),
    (rules.file_length, "bamboo/runtime/check/reference.py", "x = 1\n" * 101),
    (rules.file_length, "cli/commands/launch.py", "x = 1\n" * 151),
    (rules.function_length, "cli/main.py", LONG_FUNCTION),
    (rules.function_length, "cli/main.py", "async " + LONG_FUNCTION),
    (rules.opens_with_docstring, "cli/main.py", "import sys\n"),
    (rules.public_docstrings, "bamboo/core/machine.py", "def step(): ...\n"),
    (rules.public_docstrings, "bamboo/core/machine.py", "class Machine: ...\n"),
    (rules.file_name, "bamboo/core/utils.py", ""),
    (rules.file_name, "util.py", ""),
    (rules.unsafe_formats, "cli/main.py", "import pickle\n"),
    (rules.unsafe_formats, "cli/main.py", "def f():\n    from pickle import loads\n"),
    (rules.unsafe_formats, "cli/main.py", "import yaml\n"),
    (rules.unsafe_calls, "cli/main.py", "x = ev" + "al(text)\n"),
    (rules.unsafe_calls, "cli/main.py", "import torch\ntorch.load(path)\n"),
    (rules.unsafe_calls, "cli/main.py", "np.load(path, allow_pickle=True)\n"),
    (rules.unsafe_calls, "cli/main.py", "subprocess.run(text, shell=True)\n"),
    (rules.unsafe_calls, "cli/main.py", "subprocess.run(text, shell=flag)\n"),
    (rules.opens_to_write, "cli/main.py", "path.write_text(text)\n"),
    (rules.opens_to_write, "cli/main.py", "with path.open('ab') as log:\n    pass\n"),
    (rules.opens_to_write, "cli/main.py", "open(path, mode='r+')\n"),
    (rules.opens_to_write, "cli/main.py", "os.open(path, os.O_RDWR)\n"),
    (rules.opens_to_write, "cli/main.py", "shutil.copyfile(a, b)\n"),
    (rules.broad_except, "cli/main.py", "try:\n    f()\nexcept:\n    pass\n"),
    (rules.broad_except, "cli/main.py", "try:\n    f()\nexcept Exception:\n    pass\n"),
    (rules.broad_except, "cli/main.py", "try:\n    f()\nexcept (A, BaseException):\n    pass\n"),
    (rules.sleeping_test, "tests/core/test_machine.py", "import time\ntime.sleep(1)\n"),
    (rules.sleeping_test, "tests/core/test_machine.py", "from time import sleep\n"),
    (rules.words, "bamboo/core/state.py", "epoch = 3\n"),
    (rules.words, "bamboo/core/state.py", "class A:\n    node_rank: int = 0\n"),
    (rules.words, "bamboo/core/state.py", "def f(self):\n    self.world_size = 4\n"),
    (rules.packed_assignments, "bamboo/core/state.py", "self.a, self.b = x, []\n"),
    (rules.packed_assignments, "bamboo/core/state.py", "a, b, c = 1, x, None\n"),
    (rules.silenced_checks, "cli/main.py", "import a  # no" + "qa\n"),
    (rules.silenced_checks, "cli/main.py", "a = 1  # type" + ": ignore\n"),
    (rules.machine_paths, "README.md", "see /ho" + "me/someone/data\n"),
    (rules.unfinished, "README.md", "TO" + "DO: later\n"),
]

INNOCENTS = [
    (rules.file_length, "bamboo/core/machine.py", "x = 1\n" * 600),
    (rules.function_length, "cli/main.py", "def f():\n" + "    x = 1\n" * 69),
    (rules.opens_with_docstring, "cli/main.py", '"""The entry point."""\nimport sys\n'),
    (rules.opens_with_docstring, "cli/__init__.py", ""),
    (rules.public_docstrings, "bamboo/core/machine.py", "def _step(): ...\n"),
    (rules.public_docstrings, "cli/main.py", "def main(): ...\n"),
    (rules.file_name, "bamboo/core/machine.py", ""),
    (rules.unsafe_formats, "cli/main.py", "import json\n"),
    (rules.unsafe_calls, "cli/main.py", "model.eval()\njson.load(file)\nrun(x, shell=False)\n"),
    (rules.opens_to_write, "cli/main.py", "path.open('rb')\nwebsite.open('away')\nopen(path)\n"),
    (rules.opens_to_write, "testbed/waiting.py", "path.write_text(text)\n"),
    (rules.broad_except, "cli/main.py", "try:\n    f()\nexcept Exception:\n    raise\n"),
    (rules.broad_except, "cli/main.py", "try:\n    f()\nexcept ValueError:\n    pass\n"),
    (rules.sleeping_test, "testbed/waiting.py", "import time\ntime.sleep(1)\n"),
    (rules.sleeping_test, "bamboo/runtime/device/devices.py", "import time\ntime.sleep(1)\n"),
    (rules.words, "bamboo/data/shuffle.py", "data_epoch = 3\n"),
    (rules.words, "bamboo/core/state.py", "def f(*, rank): ...\n"),
    (rules.words, "cli/main.py", "franking = dist.get_rank()\n"),
    (rules.packed_assignments, "bamboo/core/state.py", "a, b = x, y\na, self.b = self.b, None\n"),
    (rules.packed_assignments, "bamboo/core/state.py", "self.a, self.b, c = f()\n"),
    (rules.silenced_checks, "cli/main.py", "import a  # no" + "qa: F401\n"),
    (
        rules.machine_paths,
        "README.md",
        "see $BAMBOO_HOME/home/x, docs/work/a and https://a.b/root/c\n",
    ),
    (rules.unfinished, "README.md", "what is still to do\n"),
]


@pytest.mark.parametrize(("rule", "path", "text"), OFFENDERS)
def test_sees_the_offender(rule: rules.Rule, path: str, text: str) -> None:
    assert list(rule(Source(path, text)))


@pytest.mark.parametrize(("rule", "path", "text"), INNOCENTS)
def test_lets_the_innocent_pass(rule: rules.Rule, path: str, text: str) -> None:
    assert list(rule(Source(path, text))) == []


def test_every_rule_has_an_offender_and_an_innocent() -> None:
    everything = {*rules.PYTHON_RULES, *rules.TEXT_RULES}
    assert {rule for rule, _, _ in OFFENDERS} == everything
    assert {rule for rule, _, _ in INNOCENTS} == everything
