"""The rules of a run's user: what the store uses, and nothing else."""

import ast
import re
from pathlib import Path

import pytest

from bamboo.coord import redis_store
from bamboo.coord.acl import COMMANDS, user_line, user_name, user_rules
from bamboo.errors import InputError
from bamboo.ids import RunId, run_id

RUN = run_id("calm-fox")
CONNECTING = {"ping", "select"}
"""Said by nobody's script: the look before a start, and a URL that names a database."""
OF_THE_LIBRARY = {
    # Its one use is HELLO, which a server lets everybody say: test_tls_store asks it.
    "execute_command": set(),
    "register_script": {"evalsha", "script|load"},
    "delete": {"del"},
    "connection_pool": set(),
}


def used() -> set[str]:
    """Every command in the scripts, and every call of a client in the store."""
    folder = Path(redis_store.__file__).parent
    scripts = "".join(path.read_text() for path in folder.glob("lua/*.lua"))
    found = {name.lower() for name in re.findall(r"redis\.p?call\('(\w+)'", scripts)}
    for node in ast.walk(ast.parse(Path(redis_store.__file__).read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute | ast.Name):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else owner.id
            if name in ("_commands", "_waiting", "client"):
                found |= OF_THE_LIBRARY.get(node.attr, {node.attr})
    return found | CONNECTING


def test_each_command_that_the_store_uses_is_allowed_and_no_other() -> None:
    assert used() == set(COMMANDS)


def test_the_rules_begin_with_nothing() -> None:
    rules = user_rules(RUN)
    assert rules[:4] == ("resetkeys", "resetchannels", "-@all", "~bamboo:calm-fox:*")
    assert all(rule.startswith("+") for rule in rules[4:])
    assert not any("@" in rule for rule in rules[4:]), "no category: it may grow with a server"


def test_the_line_has_no_password() -> None:
    line = user_line(RUN, password="0123456789abcdef")
    assert line.startswith("user bamboo-calm-fox on #9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc")
    assert "0123456789abcdef " not in line
    assert "\n" not in line
    with pytest.raises(InputError, match="has 5 characters; draw one of at least 16"):
        user_line(RUN, password="short")


@pytest.mark.parametrize("run", ["*", "a:*", "a b", "a\nuser root on", "", "[a-z]", "A" * 70])
def test_a_pattern_is_no_run(run: str) -> None:
    for make in (user_name, user_rules):
        with pytest.raises(InputError, match="run id"):
            make(RunId(run))
