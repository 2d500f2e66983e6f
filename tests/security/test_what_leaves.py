"""Every value that leaves Python for something that reads text its own way: a shell, a settings
file, a page, a picture, a table. Whatever the text is, it is read back as that text, or refused.

Who adds a way adds it to WAYS: a test looks for files of the product that make such text and are in
none of them.
"""

import csv
import io
import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bamboo.config.tree import JobConfig
from bamboo.coord.acl import user_rules
from bamboo.doctor.orphans import with_account_of
from bamboo.errors import InputError
from bamboo.ids import RunId, run_id
from bamboo.sites.account import terraform
from bamboo.sites.account.stack import account_toml
from bamboo.study.explaining import _modelled_words
from bamboo.study.report import Report
from cli.commands.chaos import _again
from cli.echo import printable
from cli.pictures.canvas import title_of, to_svg
from cli.views.options_body import csv_of
from cli.views.report import report_html
from cloud.ec2.run_role import Owner, RunRole, rights
from cloud.ec2.user_data import agent_environment, boot_script
from cloud.local.mock_answers import refusal
from cloud.local.valkey import _settings
from tests.tidy.tree import ROOT, python_sources

HOSTILE = (
    "x; touch pwned", "$(touch pwned)", "`touch pwned`", "'", '"', "\\", "' -x", "-x", "--x=y", "",
    "a\nb", "a\rb", "a\x00b", "${x}", "%(x)s", "%n", "{{x}}", "$x", "a b", "~", "*", "#", "!", "&&",
    "<script>alert(1)</script>", "</svg><script>", "]]>", "-->", "&amp;", "\" onload=\"x",
    "$\\int$", '=cmd|"/c calc"!A1', "+1", "@x", "|", "../../x", "/etc/passwd", "\x1b[31m",
    "\u202egnp", "\ud800", "\U0001f600", "\x7f", "x" * 3000,
)  # fmt: skip
TEXTS = st.one_of(
    st.sampled_from(HOSTILE),
    st.tuples(st.sampled_from(HOSTILE), st.text(max_size=20)).map("".join),
    st.text(st.characters(exclude_categories=()), max_size=40),
)


def a_boot_script(text: str) -> None:
    made = shlex.split(boot_script(bucket=text, script="true"), comments=True)
    assert made == ["export", f"BAMBOO_BUCKET={text}", "true"]


def settings_of_an_agent(text: str) -> None:
    try:
        made = agent_environment({"BAMBOO_RUN": text})
    except InputError:
        return
    assert made == f'BAMBOO_RUN="{text}"\n'
    assert shlex.split(made) == [f"BAMBOO_RUN={text}"]


def the_account_file(text: str) -> None:
    if any("\ud800" <= message <= "\udfff" for message in text):
        return  # no file in UTF-8 has one
    body = {"bucket": text, "zones": [text], "subnets": [{"zone": text}]}
    assert tomllib.loads(account_toml(body))["cloud"] == body


def variables_of_the_stack(text: str, folder: Path) -> None:
    terraform.keep(folder, {"name": text})
    assert json.loads((folder / terraform.VARIABLES).read_bytes()) == {"name": text}


def settings_of_the_store(text: str) -> None:
    path = Path(os.fsdecode(f"/a{text}".replace("\0", "").encode(errors="replace") + b"\xff"))
    made = _settings(data_dir=path.absolute(), socket_path=path)
    lines = made.splitlines()
    assert [line.split(" ")[0] for line in lines] == list(dict.fromkeys(made.split()[::2]))
    (read,) = (line.split(" ", 1)[1] for line in lines if line.startswith("unixsocket "))
    assert re.fullmatch(r'"([A-Za-z0-9/._-]|\\x[0-9a-f]{2})*"', read)
    assert read[1:-1].encode().decode("unicode_escape").encode("latin-1") == os.fsencode(path)


def rules_of_a_login(text: str) -> None:
    """And all else that is made of a run's id: folders, keys, tags, names of objects."""
    try:
        run = run_id(text)
    except InputError:
        with pytest.raises(InputError):
            user_rules(RunId(text))
        return
    assert re.fullmatch("[a-z0-9-]+", run)


def rights_of_a_role(text: str) -> None:
    good = {"region": "us-east-1", "stack": "bamboo", "run": "r", "bucket": "bucket"}
    owner = Owner(partition="aws", account="123456789012")
    for name in good:
        given = good | {name: text}
        try:
            role = RunRole(region=given["region"], stack=given["stack"], run=RunId(given["run"]))
            made = rights(role, owner, bucket=given["bucket"])
        except InputError:
            continue
        assert re.fullmatch(r"[a-z0-9.-]+", text), "nothing in it stands for other names"
        assert json.loads(json.dumps(made)) == made


def a_line_to_type_again(text: str) -> None:
    path = Path(text.replace("\0", ""))
    made = shlex.split(_again(path, 7, 1.5, (text,)))
    assert made == ["bamboo", "chaos", str(path), "--seed", "7", "--minutes", "1.5", "--set", text]
    made = shlex.split(with_account_of(text or "own", "bamboo stop r"))
    assert made == [f"BAMBOO_CONFIG=account file of stack {text or 'own'}", "bamboo", "stop", "r"]
    said = _modelled_words(JobConfig(file=text)).removeprefix(" See `")
    made = shlex.split(said.removesuffix("` for the links of the job's instances."))
    assert made == ["bamboo", "explain", text, "--gpu"]


def a_page(text: str) -> None:
    page = report_html(Report(run=text, now_s=0.0, missing=[text]), {})
    read = _Page()
    read.feed(page.encode().decode())
    empty = _Page()
    empty.feed(report_html(Report(run="x", now_s=0.0, missing=["x"]), {}))
    assert (read.tags, read.attributes) == (empty.tags, empty.attributes)
    assert printable(text).replace("\0", "\ufffd").strip() in read.words.replace("\0", "\ufffd")


def a_picture(text: str) -> None:
    drawn = to_svg(lambda figure: figure.suptitle(title_of(text)), width_in=1.0, height_in=1.0)
    kinds = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(drawn).iter()}
    about = {"metadata", "RDF", "Work", "type", "format", "creator", "Agent", "title"}
    assert kinds <= {"svg", "defs", "style", "g", "path", "use", "rect", *about}


def a_table(text: str) -> None:
    ((read, number),) = csv.reader(io.StringIO(csv_of([[text, -1.5]]), newline=""))
    assert number == "-1.5"
    assert read.removeprefix("'") == printable(text).removeprefix("'")
    assert not read.startswith(("=", "+", "-", "@", "\t"))


def an_answer_of_the_mock(text: str) -> None:
    try:
        read = ElementTree.fromstring(refusal("Code", text).body)
    except (ElementTree.ParseError, UnicodeEncodeError):
        assert not text.isprintable(), "XML has no control characters, and boto says so"
        return
    (message,) = read.iter("Message")
    assert (message.text or "").split() == text.split()


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        self.words += data


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How texts leave by these files, and what holds of each."""

    files: tuple[str, ...]
    holds: Callable[[str], None] | Callable[[str, Path], None]
    examples: int = 100


WAYS = {
    "a boot script": Way(files=("cloud/ec2/user_data.py",), holds=a_boot_script),
    "an agent's settings": Way(files=("cloud/ec2/user_data.py",), holds=settings_of_an_agent),
    "the account file": Way(
        files=("bamboo/sites/account/stack.py", "bamboo/sites/account/setting_up.py"),
        holds=the_account_file,
    ),
    "variables of the stack": Way(
        files=("bamboo/sites/account/terraform.py",), holds=variables_of_the_stack
    ),
    "settings of the store": Way(files=("cloud/local/valkey.py",), holds=settings_of_the_store),
    "rules of a login": Way(
        files=("bamboo/coord/acl.py", "bamboo/coord/logins.py"), holds=rules_of_a_login
    ),
    "rights of a role": Way(
        files=("cloud/ec2/run_role.py", "cloud/ec2/run_roles.py"), holds=rights_of_a_role
    ),
    "a line to type again": Way(
        files=(
            "cli/commands/chaos.py",
            "bamboo/doctor/orphans.py",
            "bamboo/study/explaining.py",
        ),
        holds=a_line_to_type_again,
    ),
    "a page": Way(files=("cli/views/report.py",), holds=a_page, examples=40),
    "a picture": Way(
        files=("cli/pictures/canvas.py", "cli/pictures/report.py"), holds=a_picture, examples=8
    ),
    "a table": Way(files=("cli/views/options_body.py",), holds=a_table),
    "an answer of the mock": Way(
        files=("cloud/local/mock_answers.py", "cloud/local/mock_fleets.py"),
        holds=an_answer_of_the_mock,
    ),
}
LEAVES = re.compile(
    r"\bshlex\b|\bfrom html\b|\bimport html\b|saxutils|csv\.writer|#!/|<svg|<html|<Response>"
    r"|account_toml|tfvars|\"SETUSER\"|unixsocketperm|\bPolicyDocument\b|\"Statement\"|\bcreate_policy\b"
    r"|put_role_policy"
)

READ = {"bamboo/sites/account/account_ready.py"}
"""What only reads such a text: here the policy of a stack."""


@pytest.mark.parametrize("name", WAYS)
def test_a_hostile_text_stays_a_text(name: str, tmp_path: Path) -> None:
    way = WAYS[name]

    @settings(max_examples=way.examples, deadline=None)
    @example(HOSTILE[0])
    @example("\u202e\x1b[31m\n")
    @given(TEXTS)
    def holds(text: str) -> None:
        if way.holds is variables_of_the_stack:
            variables_of_the_stack(text, tmp_path)
        else:
            way.holds(text)  # type: ignore[call-arg]

    holds()


def test_every_way_is_known() -> None:
    known = {file for way in WAYS.values() for file in way.files}
    assert all((ROOT / file).is_file() for file in known)
    found = {
        source.path
        for source in python_sources()
        if source.path.startswith(("bamboo/", "cli/", "cloud/")) and LEAVES.search(source.text)
    }
    assert found - known - READ == set(), (
        "texts leave by these, and no test above says what holds of them"
    )
