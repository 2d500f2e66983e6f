"""Run ids are safe in paths, tags and store keys; nothing else becomes one."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.errors import InputError
from bamboo.ids import InstanceId, node_id, run_id

SAFE = string.ascii_lowercase + string.digits


@given(st.text(SAFE, min_size=1, max_size=1), st.text(SAFE + "-", max_size=62))
def test_safe_text_is_taken_as_it_is(first: str, rest: str) -> None:
    assert run_id(first + rest) == first + rest


@given(st.text(max_size=80).filter(lambda t: t.strip(SAFE + "-") != "" or t[:1] in ("", "-")))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="run id"):
        run_id(text)


@pytest.mark.parametrize("text", ["a" * 64, "", "-a", "a/b", "../a", "a b", "A", "a\n", "é", "a:b"])
def test_what_would_harm_a_path_or_a_key_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        run_id(text)


@given(st.integers(0, 999), st.integers(0, 999))
def test_a_boot_is_a_new_node(first: int, second: int) -> None:
    instance = InstanceId("i-0abc")
    assert (node_id(instance, first) == node_id(instance, second)) == (first == second)
