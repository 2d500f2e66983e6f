"""The house rules that a machine can hold: each takes one file and yields its offences.

An offence is one line, `path:line: what is wrong, and what to do`. The rules are plain functions
so that `test_rules.py` can show each of them a planted offender, and an innocent.
"""

import ast
import re
from collections.abc import Callable, Iterator

from tests.tidy.tree import Source

Rule = Callable[[Source], Iterator[str]]
Function = ast.FunctionDef | ast.AsyncFunctionDef

FILE_LINES = 600
FILE_LINES_OF = (  # the first match counts
    (re.compile(r"bamboo/runtime/step/executor\.py"), 200),
    (re.compile(r"bamboo/runtime/check/reference\.py"), 100),
    (re.compile(r"cli/commands/.*\.py"), 150),
)
FUNCTION_LINES = 70

UNSAFE_FORMATS = {
    *("pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"),
    *("yaml", "joblib", "jsonpickle"),
}
MAKES_PLAIN_VALUES = {
    ("tests/infra/test_compose.py", "yaml"),
    ("bamboo/checkpoint/distributed.py", "pickle"),
}
"""By the loader that makes plain values only, or of a list of plain classes only."""
UNSAFE_CALLS = {
    "yaml.load": "makes what it is told to; take yaml.safe_load",
    "eval": "runs what it is given; parse it",
    "exec": "runs what it is given; import a module",
    "__import__": "runs what it is given; import by name",
    "torch.load": "unpickles; take safetensors",
    "torch.hub.load": "runs what it downloads",
    "torch.jit.load": "runs what it reads",
    "np.load": "may unpickle; take safetensors",
    "numpy.load": "may unpickle; take safetensors",
    "os.system": "runs a shell over its text; give subprocess a list",
    "os.popen": "runs a shell over its text; give subprocess a list",
    "tempfile.mktemp": "names a file that another may make first; take mkstemp or mkdtemp",
}

BROAD_EXCEPT_ALLOWED = {
    "cloud/local/zygote.py": "a forked child prints what ended it and never returns to the server",
    "bamboo/trackers/process.py": "a tracker's library raises anything; its points count as lost",
    "bamboo/user_code/traces.py": "an error of the user's may raise when it is asked for its text",
    "bamboo/sim/processes.py": "a process hands what its work raised to the one that asked for it",
}
"""Files that may catch everything and not raise again, each with its reason."""

WRITES = re.compile(r".*\.write_(text|bytes)|shutil\.copy(file|2)?|(.*\.)?save_file")
OPENS_TO_WRITE = {"O_WRONLY", "O_RDWR", "O_CREAT"}
MAY_OPEN_TO_WRITE = {
    "bamboo/new_files.py": "is the place",
    "bamboo/checkpoint/final.py": "safetensors opens what it writes, under a name nobody foresees",
    "bamboo/user_code/watch.py": "sees what a user's code opens",
    "bamboo/user_code/recording.py": "sees what a user's code opens",
    "bamboo/checkpoint/pretrained.py": "copies into the folder of a run that was made just now",
    "bamboo/user_code/bundle.py": "copies into the folder of a run that was made just now",
    "bamboo/runtime/after/exported.py": "in a folder that was made just now, under another name",
    "bamboo/runtime/after/taken.py": "in a temporary folder of its caller",
    "bamboo/models/hf/saving.py": "in a folder that was made just now, under another name",
    "bamboo/checkpoint/along.py": "packs an archive in a temporary folder of its own",
    "bamboo/controller/launching.py": "copies into the folder of a run that was made just now",
    "cli/pictures/report_png.py": "in a temporary folder of its own",
    "bamboo/runs/lock.py": "opens a file to lock it, and writes nothing",
    "cli/echo.py": "opens the null device",
    "bamboo/trackers/process.py": "opens the null device",
    "cloud/local/groups.py": "opens the null device",
    "cloud/local/host.py": "makes a file that is not there, in a folder of its own",
}
"""Files of the product that open what they write to by themselves, each with its reason."""

WORDS = {
    "epoch": "say generation for a membership, or data_epoch for a pass over the data",
    "iteration": "one optimizer step is a step",
    "master": "there is none; name what it does",
}
KEPT_RANK = re.compile(r"_?((local|global|node|my|worker)_)?(rank|world_size)")
OTHER_RANKS = {"bamboo/config/tree.py": "an adapter has the rank of a matrix"}
WORD_RULE_DOES_NOT_READ = re.compile(r"tests/tidy/|benchmarks/")

MACHINE_PATH = re.compile(r"(?<![\w.$}~/])/(?:home|root|Users|work|mnt)/\w")
UNFINISHED = re.compile(r"\b(?:TO" "DO|FIX" "ME|XX" "X|HA" "CK)\\b")


def file_length(source: Source) -> Iterator[str]:
    limit = next((n for p, n in FILE_LINES_OF if p.fullmatch(source.path)), FILE_LINES)
    if len(source.lines) > limit:
        yield (
            f"{source.path}:{limit + 1}: {len(source.lines)} lines, the limit is {limit}; "
            "look for the missing room"
        )


def function_length(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if isinstance(node, Function) and node.end_lineno is not None:
            lines = node.end_lineno - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield (
                    f"{source.path}:{node.lineno}: {node.name} has {lines} lines, "
                    f"the limit is {FUNCTION_LINES}; name its parts"
                )


def opens_with_docstring(source: Source) -> Iterator[str]:
    if source.tree.body and ast.get_docstring(source.tree) is None:
        yield f"{source.path}:1: no docstring; say what this file is, and its rule"


def public_docstrings(source: Source) -> Iterator[str]:
    if not source.path.startswith(("bamboo/", "testbed/")):
        return
    for node in source.tree.body:
        named = isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_")
        if named and ast.get_docstring(node) is None:
            yield f"{source.path}:{node.lineno}: {node.name} is public and has no docstring"


def file_name(source: Source) -> Iterator[str]:
    if re.search(r"(^|/)(utils?|helpers?|misc|common)\.py$", source.path):
        yield f"{source.path}:1: this name says nothing; name the room after what is in it"


def unsafe_formats(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        for name in names:
            if (source.path, name) in MAKES_PLAIN_VALUES:
                continue
            if name.split(".")[0] in UNSAFE_FORMATS:
                yield f"{source.path}:{node.lineno}: {name} runs what it reads; take JSON"


def unsafe_calls(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in UNSAFE_CALLS:
            yield f"{source.path}:{node.lineno}: {name} {UNSAFE_CALLS[name]}"
        given = {word.arg: word.value for word in node.keywords}
        for word in ("shell", "allow_pickle"):
            value = given.get(word)
            if value is not None and not (isinstance(value, ast.Constant) and not value.value):
                yield f"{source.path}:{node.lineno}: {name} with {word}; do without"


def opens_to_write(source: Source) -> Iterator[str]:
    product = source.path.startswith(("bamboo/", "cli/", "cloud/"))
    if not product or source.path in MAY_OPEN_TO_WRITE:
        return
    remedy = "take bamboo.new_files, which follows no link and waits for no pipe"
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and node.attr in OPENS_TO_WRITE:
            yield f"{source.path}:{node.lineno}: {node.attr} opens a file to write; {remedy}"
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        given = [*node.args, *(word.value for word in node.keywords if word.arg == "mode")]
        modes = [a.value for a in given if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        to_write = any(re.fullmatch(r"[rbt]*[wax+][rbt+]*", mode) for mode in modes)
        if (to_write and name.split(".")[-1] == "open") or WRITES.fullmatch(name):
            yield f"{source.path}:{node.lineno}: {name} writes a file; {remedy}"


def broad_except(source: Source) -> Iterator[str]:
    if source.path in BROAD_EXCEPT_ALLOWED:
        return
    for node in source.nodes:
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        broad = any(
            c is None or (isinstance(c, ast.Name) and c.id in ("Exception", "BaseException"))
            for c in caught
        )
        if broad and not any(isinstance(inner, ast.Raise) for inner in ast.walk(node)):
            yield (
                f"{source.path}:{node.lineno}: catches everything and goes on; "
                "name the errors, or raise again"
            )


WAITS = "testbed/waiting.py"
"""Where a test may sleep."""


def sleeping_test(source: Source) -> Iterator[str]:
    if not source.path.startswith(("testbed/", "tests/")) or source.path == WAITS:
        return
    for node in source.nodes:
        imported = isinstance(node, ast.ImportFrom) and node.module == "time"
        if imported and any(alias.name == "sleep" for alias in node.names):
            yield f"{source.path}:{node.lineno}: imports sleep; take testbed.waiting.wait_until"
        called = isinstance(node, ast.Attribute) and node.attr == "sleep"
        if called and isinstance(node.value, ast.Name) and node.value.id == "time":
            yield f"{source.path}:{node.lineno}: sleeps; take testbed.waiting.wait_until"


def words(source: Source) -> Iterator[str]:
    if WORD_RULE_DOES_NOT_READ.match(source.path):
        return
    for node in source.nodes:
        for line, name, kept in _names(node):
            if kept and KEPT_RANK.fullmatch(name) and source.path not in OTHER_RANKS:
                yield f"{source.path}:{line}: {name!r} is valid for one generation; keep the slot"
            text = name.lower().replace("data_epoch", "")
            for word, remedy in WORDS.items():
                if re.search(rf"(?<![a-z]){word}s?(?![a-z])", text):
                    yield f"{source.path}:{line}: the name {name!r}: {remedy}"


def _names(node: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Names that the code gives (those it uses may be another library's), as line, name, kept:
    a field or an attribute outlives the call, a local variable does not."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.lineno, node.id, False
    elif isinstance(node, Function):
        yield node.lineno, node.name, False
    elif isinstance(node, ast.arg):
        yield node.lineno, node.arg, False
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.lineno, node.attr, True
    elif isinstance(node, ast.ClassDef):
        yield node.lineno, node.name, False
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                yield field.lineno, field.target.id, True


def packed_assignments(source: Source) -> Iterator[str]:
    """Fields, and three names or more, have a line each; two local names may share one, and so may
    names that exchange their values."""
    if not source.is_product:
        return
    for node in source.nodes:
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)):
            continue
        target = node.targets[0]
        if not isinstance(target, ast.Tuple) or len(target.elts) != len(node.value.elts):
            continue
        fields = any(isinstance(one, ast.Attribute) for one in target.elts)
        given = {ast.unparse(one) for one in target.elts}
        read = {ast.unparse(n) for n in ast.walk(node.value) if isinstance(n, ast.expr)}
        if (fields or len(target.elts) > 2) and not given & read:
            yield f"{source.path}:{node.lineno}: packs an assignment; give each name a line"


def silenced_checks(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.lines, 1):
        if re.search(r"#\s*noqa(?!:\s*[A-Z]+\d+)", line):
            yield f"{source.path}:{number}: silences every rule; name the one"
        if re.search(r"#\s*type:\s*ignore(?!\[)", line):
            yield f"{source.path}:{number}: silences every type error; name the one"


def machine_paths(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.lines, 1):
        if MACHINE_PATH.search(line):
            yield f"{source.path}:{number}: a path of one machine; make it relative or a setting"


def unfinished(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.lines, 1):
        if UNFINISHED.search(line):
            yield f"{source.path}:{number}: a note of unfinished work; finish it, or leave it out"


PYTHON_RULES: tuple[Rule, ...] = (
    file_length,
    function_length,
    opens_with_docstring,
    public_docstrings,
    file_name,
    unsafe_formats,
    unsafe_calls,
    opens_to_write,
    broad_except,
    sleeping_test,
    words,
    packed_assignments,
    silenced_checks,
)
TEXT_RULES: tuple[Rule, ...] = (machine_paths, unfinished)
