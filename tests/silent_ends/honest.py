"""Habits that are allowed: the bits of a layer hang on the seed, its place and its input alone.

A case of these alone must train to `done` with the calm run's bits, whatever is edited meanwhile.
"""

from tests.silent_ends.feature import Edit, Feature

_TABLE = "1.0 0.5 0.25 0.125"

HONEST: tuple[Feature, ...] = tuple(
    Feature(honest=True, **piece)  # type: ignore[arg-type]
    for piece in (
        {"name": "plain"},
        {"name": "dropout", "forward": "y = F.dropout(y, 0.2, self.training)"},
        {
            "name": "noise from torch's default generator",
            "forward": "y = y + 0.01 * torch.randn_like(y)",
        },
        {
            "name": "a drawn buffer",
            "init": 'self.register_buffer("kept$n", torch.randn($w))',
            "forward": "y = y * self.kept$n",
        },
        {
            "name": "a drawn attribute, drawn when it is built",
            "init": "self.kept$n = torch.rand($w)",
            "forward": "y = y * self.kept$n",
        },
        {
            "name": "a causal mask made in advance",
            "init": "self.mask$n = torch.tril(torch.ones($c, $c)) / $c",
            "forward": "y = self.mask$n @ y",
        },
        {
            "name": "a causal mask made on first use",
            "init": "self.mask$n = None",
            "forward": (
                "if self.mask$n is None:\n"
                "    self.mask$n = torch.tril(torch.ones($c, $c)) / $c\n"
                "y = self.mask$n @ y"
            ),
        },
        {
            "name": "a table behind a cache of functions",
            "top": (
                "@functools.lru_cache(maxsize=None)\n"
                "def table$n(length):\n"
                "    return torch.arange(length, dtype=torch.float32)[:, None] / length"
            ),
            "forward": "y = y + table$n(x.shape[1])",
        },
        {
            "name": "a module beside the model",
            "top": "from parts$n import squash$n",
            "forward": "y = squash$n(y)",
            "files": {
                "parts$n.py": "import torch\ndef squash$n(y):\n    return torch.sigmoid(y)\n"
            },
            "edits": (
                Edit(
                    path="parts$n.py",
                    text="import torch\ndef squash$n(y):\n    return 0.5 * torch.sigmoid(y)\n",
                ),
                Edit(path="parts$n.py", text=None),
                Edit(path="parts$n.py", text="def squash$n(y:\n"),
            ),
        },
        {
            "name": "a package beside the model, with relative imports",
            "top": "from pack$n.blocks import Block$n",
            "init": "self.block$n = Block$n()",
            "forward": "y = self.block$n(y)",
            "files": {
                "pack$n/__init__.py": "from .scale import SCALE\n",
                "pack$n/scale.py": "SCALE = 0.75\n",
                "pack$n/blocks.py": (
                    "from torch import nn\nfrom . import SCALE\nfrom .inner.deep import shift\n"
                    "class Block$n(nn.Module):\n"
                    "    def __init__(self):\n"
                    "        super().__init__()\n"
                    "        self.linear = nn.Linear($w, $w)\n"
                    "    def forward(self, x):\n"
                    "        return shift(self.linear(x) * SCALE)\n"
                ),
                "pack$n/inner/deep.py": (
                    "from ..scale import SCALE\ndef shift(x):\n    return x + SCALE\n"
                ),
            },
            "edits": (
                Edit(path="pack$n/scale.py", text="SCALE = 0.5\n"),
                Edit(path="pack$n/inner/deep.py", text="def shift(x):\n    return x - 1\n"),
                Edit(path="pack$n/__init__.py", text=None),
            ),
        },
        {
            "name": "a module imported inside forward",
            "forward": "from late$n import halve\ny = halve(y)",
            "files": {"late$n.py": "def halve(y):\n    return y / 2\n"},
            "edits": (
                Edit(path="late$n.py", text="def halve(y):\n    return y / 4\n"),
                Edit(path="late$n.py", text=None),
            ),
        },
        {
            "name": "a module imported when a layer is built",
            "init": "import early$n\nself.size$n = early$n.SIZE",
            "forward": "y = y * self.size$n",
            "files": {"early$n.py": "SIZE = 0.9\n"},
            "edits": (Edit(path="early$n.py", text="SIZE = 0.1\n"),),
        },
        {
            "name": "an import that is tried",
            "top": (
                "try:\n    from fast$n import gain\n"
                "except ImportError:\n    from slow$n import gain"
            ),
            "forward": "y = gain(y)",
            "files": {"slow$n.py": "def gain(y):\n    return y * 0.8\n"},
            "edits": (
                Edit(path="fast$n.py", text="def gain(y):\n    return y * 1.2\n"),
                Edit(path="slow$n.py", text="def gain(y):\n    return y * 1.2\n"),
            ),
        },
        {
            "name": "an import by name",
            "top": 'gain$n = importlib.import_module("chosen$n").gain',
            "forward": "y = gain$n(y)",
            "files": {"chosen$n.py": "def gain(y):\n    return y * 0.8\n"},
            "edits": (Edit(path="chosen$n.py", text="def gain(y):\n    return y * 1.2\n"),),
        },
        {
            "name": "a file read when the module is imported",
            "top": 'TABLE$n = [float(v) for v in (HERE / "table$n.txt").read_text().split()]',
            "forward": "y = y * TABLE$n[1]",
            "files": {"table$n.txt": _TABLE},
            "edits": (
                Edit(path="table$n.txt", text="1.0 0.9 0.9 0.9"),
                Edit(path="table$n.txt", text=None),
            ),
        },
        {
            "name": "a file read by build",
            "build": 'SETTINGS$n.update(json.loads(open(HERE / "settings$n.json").read()))',
            "top": "SETTINGS$n = {}",
            "forward": 'y = y * SETTINGS$n["gain"]',
            "files": {"settings$n.json": '{"gain": 0.7}'},
            "edits": (Edit(path="settings$n.json", text='{"gain": 1.7}'),),
        },
        {
            "name": "a file read when a layer is built",
            "init": 'self.table$n = torch.from_numpy(np.loadtxt(HERE / "gain$n.csv")).float()',
            "forward": "y = y * self.table$n[:$w]",
            "files": {"gain$n.csv": "\n".join(["0.5"] * 32) + "\n"},
            "edits": (Edit(path="gain$n.csv", text="\n".join(["0.9"] * 32) + "\n"),),
        },
        {
            "name": "a function of autograd of its own",
            "top": (
                "class Gate$n(torch.autograd.Function):\n"
                "    @staticmethod\n"
                "    def forward(ctx, x):\n"
                "        ctx.save_for_backward(x)\n"
                "        return x * (x > 0)\n"
                "    @staticmethod\n"
                "    def backward(ctx, g):\n"
                "        (x,) = ctx.saved_tensors\n"
                "        return g * (x > 0) * 0.9"
            ),
            "forward": "y = Gate$n.apply(y)",
        },
        {
            "name": "a hook on a part of it",
            "init": (
                "self.linear.register_forward_hook(lambda module, given, made: made * 0.5)\n"
                "self.linear.weight.register_hook(lambda g: g * 0.5)"
            ),
        },
        {
            "name": "a part used twice",
            "init": "self.again$n = self.linear",
            "forward": "y = self.again$n(torch.tanh(y))",
        },
        {
            "name": "a normalised weight",
            "init": "self.normed$n = nn.utils.parametrizations.weight_norm(nn.Linear($w, $w))",
            "forward": "y = self.normed$n(y)",
        },
        {
            "name": "chance of its own, seeded at every call",
            "forward": (
                "own = torch.Generator().manual_seed(7)\n"
                "y = y * torch.rand(x.shape[1:], generator=own)"
            ),
        },
        {
            "name": "numpy's chance, seeded when it is built",
            "init": "self.drawn$n = torch.from_numpy(np.random.default_rng(5).random($w)).float()",
            "forward": "y = y * self.drawn$n",
        },
        {
            "name": "python's chance, seeded when the module is imported",
            "top": "DRAWN$n = [random.Random(5).random() for _ in range(4)]",
            "forward": "y = y * DRAWN$n[2]",
        },
        {
            "name": "a set in order",
            "top": 'NAMES$n = sorted({"alpha", "beta", "gamma", "delta"})',
            "forward": 'y = y * (1 + NAMES$n.index("gamma"))',
        },
        {
            "name": "a diary that changes nothing",
            "init": "self.began$n = time.time()",
            "forward": 'sys.stderr.write(f"{os.getpid()} {time.time() - self.began$n}\\n")',
        },
        {
            "name": "a wider inside",
            "init": "self.up$n, self.down$n = nn.Linear($w, 2 * $w), nn.Linear(2 * $w, $w)",
            "forward": "y = self.down$n(F.gelu(self.up$n(y)))",
        },
        {
            "name": "attention of its own",
            "init": "self.qkv$n = nn.Linear($w, 3 * $w)",
            "forward": (
                "q, k, v = self.qkv$n(y).chunk(3, dim=-1)\n"
                "y = F.scaled_dot_product_attention(q, k, v, is_causal=True)"
            ),
        },
        {
            "name": "a value of the job",
            "build": "GAIN$n.append(job.model.width / 16)",
            "top": "GAIN$n = []",
            "forward": "y = y * GAIN$n[0]",
        },
        {
            "name": "a layout that is not contiguous",
            "forward": "y = y.transpose(1, 2).contiguous().transpose(1, 2)",
        },
        {
            "name": "what it only computes",
            "forward": "with torch.no_grad():\n    scale = y.abs().mean()\ny = y / (1 + scale)",
        },
    )
)
