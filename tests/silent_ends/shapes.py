"""How a user's file hands over its layers, in honest ways and in others."""

from tests.silent_ends.feature import Shape

_FIRST, _LAST = "nn.Embedding(256, $w)", "nn.Linear($w, 256)"
_LOSS = (
    "def loss(y, t):\n    return F.cross_entropy(y.flatten(0, 1), t.flatten(), reduction='sum')\n"
)


def _list(items: str) -> str:
    return f"def build(job):\n$build    return [{items}]\n"


def _spec(rest: str, *, loss: str = _LOSS) -> str:
    return (
        f"from bamboo.models import ModelSpec, TiedParameter\n{loss}"
        "def build(job):\n$build"
        f"    made = (lambda: {_FIRST}, $classes, lambda: nn.Linear($w, 256, bias=False))\n"
        f"    return ModelSpec(factories=made, loss=loss{rest})\n"
    )


def _tie(owner: int, owner_name: str, user: str, user_name: str) -> str:
    return (
        f"TiedParameter(owner_layer={owner}, owner_name='{owner_name}', "
        f"user_layer={user}, user_name='{user_name}')"
    )


_HEAD = "1 + $count"

SHAPES: tuple[Shape, ...] = (
    Shape(
        name="functions", honest=True, code=_list(f"lambda: {_FIRST}, $classes, lambda: {_LAST}")
    ),
    Shape(name="made in build", honest=True, code=_list(f"{_FIRST}, $called, {_LAST}")),
    Shape(
        name="functions and made ones",
        honest=True,
        code=_list(f"{_FIRST}, $classes, $first, $last(), {_LAST}"),
    ),
    Shape(
        name="partial functions",
        honest=True,
        code=(
            "def make(cls, *sizes):\n    return cls(*sizes)\n"
            + _list(
                "functools.partial(make, nn.Embedding, 256, $w), "
                "*(functools.partial(make, c) for c in ($classes,)), "
                "functools.partial(make, nn.Linear, $w, 256)"
            )
        ),
    ),
    Shape(name="a spec", honest=True, code=_spec("")),
    Shape(
        name="a spec with a tied head",
        honest=True,
        code=_spec(f", tied=({_tie(0, 'weight', _HEAD, 'weight')},)"),
    ),
    Shape(
        name="a spec with tied layers",
        honest=True,
        code=_spec(f", tied=({_tie(1, 'linear.weight', '2', 'linear.weight')},)"),
    ),
    Shape(
        name="a spec with a loss that smooths",
        honest=True,
        code=_spec("", loss=_LOSS.replace("'sum'", "'sum', label_smoothing=0.1")),
    ),
    # ------------------------------------------------------------------ not honest
    Shape(
        name="made when the module is imported",
        honest=False,
        code=f"LAYERS = [{_FIRST}, $called, {_LAST}]\ndef build(job):\n$build    return LAYERS\n",
    ),
    Shape(
        name="one layer in two functions",
        honest=False,
        code=(
            "def build(job):\n$build"
            "    shared = $first()\n"
            f"    return [lambda: {_FIRST}, lambda: shared, lambda: shared, $classes, "
            f"lambda: {_LAST}]\n"
        ),
    ),
    Shape(
        name="one part in two functions",
        honest=False,
        code=(
            "def build(job):\n$build"
            "    shared = nn.Linear($w, $w)\n"
            "    def with_shared(cls):\n"
            "        made = cls()\n        made.linear = shared\n        return made\n"
            f"    return [lambda: {_FIRST}, lambda: with_shared($first), $classes, "
            f"lambda: with_shared($last), lambda: {_LAST}]\n"
        ),
    ),
    Shape(
        name="a head tied by hand",
        honest=False,
        code=(
            f"EMBEDDING = {_FIRST}\n"
            "def head():\n"
            "    made = nn.Linear($w, 256, bias=False)\n"
            "    made.weight = EMBEDDING.weight\n    return made\n"
            + _list("lambda: EMBEDDING, $classes, head")
        ),
    ),
    Shape(
        name="a head tied by hand, where the embedding was built",
        honest=False,
        code=(
            "BUILT = {}\n"
            "def embedding():\n"
            f"    BUILT['e'] = {_FIRST}\n    return BUILT['e']\n"
            "def head():\n"
            "    made = nn.Linear($w, 256, bias=False)\n"
            "    if 'e' in BUILT:\n"
            "        made.weight = BUILT['e'].weight\n    return made\n"
            + _list("embedding, $classes, head")
        ),
    ),
    Shape(
        name="a value shared by hand, where it was built",
        honest=False,
        code=(
            "KEPT = {}\n"
            "def first():\n"
            "    KEPT['l'] = $first()\n    return KEPT['l']\n"
            "def second():\n"
            "    made = $first()\n"
            "    if 'l' in KEPT:\n"
            "        made.load_state_dict(KEPT['l'].state_dict())\n    return made\n"
            + _list(f"lambda: {_FIRST}, first, $classes, second, lambda: {_LAST}")
        ),
    ),
    Shape(
        name="ties in a chain",
        honest=False,
        code=_spec(
            f", tied=({_tie(1, 'linear.weight', '2', 'linear.weight')}, "
            f"{_tie(2, 'linear.weight', '3', 'linear.weight')})"
        ),
    ),
    Shape(
        name="a tie that is listed twice",
        honest=False,
        code=_spec(
            f", tied=({_tie(1, 'linear.weight', '2', 'linear.weight')}, "
            f"{_tie(1, 'linear.weight', '2', 'linear.weight')})"
        ),
    ),
    Shape(
        name="two owners of one user",
        honest=False,
        code=_spec(
            f", tied=({_tie(1, 'linear.weight', '3', 'linear.weight')}, "
            f"{_tie(2, 'linear.weight', '3', 'linear.weight')})"
        ),
    ),
    Shape(
        name="a tie to itself",
        honest=False,
        code=_spec(f", tied=({_tie(1, 'linear.weight', '1', 'linear.weight')},)"),
    ),
    Shape(
        name="a tie to a later owner",
        honest=False,
        code=_spec(f", tied=({_tie(2, 'linear.weight', '1', 'linear.weight')},)"),
    ),
    Shape(
        name="a tie to a name that is not there",
        honest=False,
        code=_spec(f", tied=({_tie(1, 'linear.weight', '1', 'inner.weight')},)"),
    ),
    Shape(
        name="a spec that is not plain and says so",
        honest=False,
        code=_spec(", plain=True"),
    ),
    Shape(
        name="a loss that is a mean",
        honest=False,
        code=_spec("", loss=_LOSS.replace("'sum'", "'mean'")),
    ),
    Shape(
        name="a loss that counts its calls",
        honest=False,
        code=_spec(
            "",
            loss=(
                "CALLS = [0]\n"
                "def loss(y, t):\n"
                "    CALLS[0] += 1\n"
                "    flat = F.cross_entropy(y.flatten(0, 1), t.flatten(), reduction='sum')\n"
                "    return flat * (1.0 if CALLS[0] < 18 else 1.5)\n"
            ),
        ),
    ),
    Shape(
        name="a loss that remembers",
        honest=False,
        code=_spec(
            "",
            loss=(
                "MEAN = {'loss': None}\n"
                "def loss(y, t):\n"
                "    flat = F.cross_entropy(y.flatten(0, 1), t.flatten(), reduction='sum')\n"
                "    now = flat.item()\n"
                "    before = MEAN['loss'] or now\n    MEAN['loss'] = 0.9 * before + 0.1 * now\n"
                "    return flat * (1 + 0.01 * (now > MEAN['loss']))\n"
            ),
        ),
    ),
    Shape(
        name="a loss that draws from python's chance",
        honest=False,
        code=_spec(
            "",
            loss=_LOSS.replace("return F", "return (1 + 0.1 * random.random()) * F"),
        ),
    ),
    Shape(
        name="a loss that draws from torch's chance",
        honest=False,
        code=_spec(
            "",
            loss=_LOSS.replace("return F", "return (1 + 0.1 * torch.rand(())) * F"),
        ),
    ),
    Shape(
        name="functions in the order of a set",
        honest=False,
        code=(
            "BY_NAME = {c.__name__: c for c in ($classes,)}\n"
            + _list(f"lambda: {_FIRST}, *(BY_NAME[n] for n in set(BY_NAME)), lambda: {_LAST}")
        ),
    ),
    Shape(
        name="functions that a generator makes",
        honest=False,
        code=(
            "ORDER = itertools.cycle(($classes,))\n"
            + _list(
                f"lambda: {_FIRST}, *(lambda: next(ORDER)() for _ in ($classes,)), lambda: {_LAST}"
            )
        ),
    ),
)
