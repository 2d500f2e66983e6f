"""Habits that make bits hang on machines, calls or time: chance, memory, and what is written.

A case with one of these may train to the calm run's bits, or be refused, or end with a named fault.
"""

from tests.silent_ends.feature import Feature

LATE = 14
"""More calls than one microbatch makes in a look, fewer than a layer makes in a run."""

HAZARDS: tuple[Feature, ...] = tuple(
    Feature(honest=False, **piece)  # type: ignore[arg-type]
    for piece in (
        # -------------------------------------------------------------- chance
        {"name": "python's chance in forward", "forward": "y = y * random.random()"},
        {"name": "numpy's chance in forward", "forward": "y = y * float(np.random.rand())"},
        {
            "name": "python's chance in forward, seldom",
            "forward": "if random.random() < 0.04:\n    y = 0 * y",
        },
        {
            "name": "python's chance when the module is imported",
            "top": "GAIN$n = random.random()",
            "forward": "y = y * GAIN$n",
        },
        {
            "name": "numpy's chance when the module is imported",
            "top": "GAIN$n = float(np.random.rand())",
            "forward": "y = y * GAIN$n",
        },
        {
            "name": "python's chance when a layer is built",
            "init": "self.gain$n = random.random()",
            "forward": "y = y * self.gain$n",
        },
        {
            "name": "numpy's chance when a layer is built",
            "init": "self.gain$n = torch.from_numpy(np.random.rand($w)).float()",
            "forward": "y = y * self.gain$n",
        },
        {
            "name": "numpy's chance in a parameter",
            "init": "self.linear.weight.data = torch.from_numpy(np.random.rand($w, $w)).float()",
        },
        {
            "name": "python's chance in build",
            "top": "GAIN$n = []",
            "build": "GAIN$n.append(random.random())",
            "forward": "y = y * GAIN$n[0]",
        },
        {
            "name": "python's chance with a seed of its own, in forward",
            "top": "CHANCE$n = random.Random(3)",
            "forward": "y = y * CHANCE$n.random()",
        },
        {
            "name": "python's chance, seeded when the module is imported, in forward",
            "top": "random.seed(3)",
            "forward": "y = y * random.random()",
        },
        {
            "name": "torch's chance when the module is imported",
            "top": "GAIN$n = torch.rand($w)",
            "forward": "y = y * GAIN$n",
        },
        {
            "name": "a layer made when the module is imported",
            "top": "MADE$n = nn.Linear($w, $w)",
            "init": "self.made$n = MADE$n",
            "forward": "y = self.made$n(y)",
        },
        {
            "name": "a layer made when the module is imported, copied",
            "top": "MADE$n = nn.Linear($w, $w)",
            "init": "self.made$n = copy.deepcopy(MADE$n)",
            "forward": "y = self.made$n(y)",
        },
        {
            "name": "a generator of its own that goes on",
            "init": "self.own$n = torch.Generator().manual_seed(3)",
            "forward": "y = y * torch.rand($w, generator=self.own$n)",
        },
        {
            "name": "a generator of the module, in layers that are built",
            "top": "OWN$n = torch.Generator().manual_seed(3)",
            "init": "nn.init.normal_(self.linear.weight, std=0.1, generator=OWN$n)",
        },
        {
            "name": "a generator of the module, in a plain attribute",
            "top": "OWN$n = torch.Generator().manual_seed(3)",
            "init": "self.gain$n = torch.rand($w, generator=OWN$n)",
            "forward": "y = y * self.gain$n",
        },
        {
            "name": "a seed from the machine when the module is imported",
            "top": "torch.seed()\nGAIN$n = torch.rand($w)",
            "forward": "y = y * GAIN$n",
        },
        {
            "name": "a seed from the machine when a layer is built",
            "init": "torch.seed()\nself.gain$n = torch.rand($w)",
            "forward": "y = y * self.gain$n",
        },
        {
            "name": "a seed from the machine in forward",
            "forward": "torch.seed()\ny = F.dropout(y, 0.2)",
        },
        {
            "name": "a seed of its own in forward",
            "forward": "torch.manual_seed(3)\ny = F.dropout(y, 0.2)",
        },
        {
            "name": "chance in the gradient alone",
            "forward": "if y.requires_grad:\n    y.register_hook(lambda g: g * random.random())",
        },
        {
            "name": "torch's chance in the gradient alone",
            "forward": "if y.requires_grad:\n    y.register_hook(lambda g: g * torch.rand(()))",
        },
        {
            "name": "what a seed was, as a number",
            "forward": "y = y * (1 + (torch.initial_seed() % 97) / 1000)",
        },
        # -------------------------------------------------------------- memory of calls
        {
            "name": "counts its calls",
            "init": "self.calls$n = 0",
            "forward": "self.calls$n += 1\ny = y * self.calls$n",
        },
        {
            "name": "counts its calls, late",
            "init": "self.calls$n = 0",
            "forward": f"self.calls$n += 1\nif self.calls$n > {LATE}:\n    y = y * 0.5",
        },
        {
            "name": "counts its calls in the class, late",
            "methods": "calls$n = 0",
            "forward": f"type(self).calls$n += 1\nif self.calls$n > {LATE}:\n    y = y * 0.5",
        },
        {
            "name": "counts its calls in the module, late",
            "top": "CALLS$n = [0]",
            "forward": f"CALLS$n[0] += 1\nif CALLS$n[0] > {LATE}:\n    y = y * 0.5",
        },
        {
            "name": "counts its calls in a closure, late",
            "init": "self.count$n = itertools.count()",
            "forward": f"if next(self.count$n) > {LATE}:\n    y = y * 0.5",
        },
        {
            "name": "counts its calls in a buffer that is not kept, late",
            "init": 'self.register_buffer("calls$n", torch.zeros(()), persistent=False)',
            "forward": f"self.calls$n += 1\ny = torch.where(self.calls$n > {LATE}, y * 0.5, y)",
        },
        {
            "name": "counts its calls in a plain tensor, late",
            "init": "self.calls$n = torch.zeros(())",
            "forward": f"self.calls$n += 1\ny = torch.where(self.calls$n > {LATE}, y * 0.5, y)",
        },
        {
            "name": "counts its gradients in a hook, late",
            "init": (
                "self.calls$n = 0\n"
                "def halve(g):\n"
                "    self.calls$n += 1\n"
                f"    return g * 0.5 if self.calls$n > {LATE} else g\n"
                "self.linear.weight.register_hook(halve)"
            ),
        },
        {
            "name": "a hook on every module that counts, late",
            "top": (
                "SEEN$n = []\n"
                "def note(module, given, made):\n"
                "    if isinstance(module, nn.Linear):\n"
                "        SEEN$n.append(1)\n"
                f"        return made * 0.5 if len(SEEN$n) > {2 * LATE} else None\n"
                "nn.modules.module.register_module_forward_hook(note)"
            ),
        },
        {
            "name": "draws a plain attribute on first use",
            "init": "self.mask$n = None",
            "forward": (
                "if self.mask$n is None:\n"
                "    self.mask$n = (torch.rand(x.shape[1:]) < 0.9).float()\n"
                "y = y * self.mask$n"
            ),
        },
        {
            "name": "keeps the first input",
            "init": "self.first$n = None",
            "forward": (
                "if self.first$n is None:\n"
                "    self.first$n = x.detach().clone()\n"
                "y = y + 0.1 * self.first$n"
            ),
        },
        {
            "name": "keeps the last input",
            "init": "self.last$n = None",
            "forward": (
                "now = x.detach().clone()\n"
                "y = y + 0.1 * (now if self.last$n is None else self.last$n)\n"
                "self.last$n = now"
            ),
        },
        {
            "name": "a running mean in a plain attribute",
            "init": "self.mean$n = 1.0",
            "forward": (
                "self.mean$n = 0.9 * self.mean$n + 0.1 * float(y.detach().abs().mean())\n"
                "y = y / self.mean$n"
            ),
        },
        {
            "name": "a running mean that is used later",
            "init": "self.mean$n, self.calls$n = 1.0, 0",
            "forward": (
                "self.calls$n += 1\n"
                "self.mean$n = 0.9 * self.mean$n + 0.1 * float(y.detach().abs().mean())\n"
                f"if self.calls$n > {LATE}:\n    y = y / self.mean$n"
            ),
        },
        {
            "name": "the statistics of a batch",
            "init": "self.norm$n = nn.BatchNorm1d($w)",
            "forward": "y = self.norm$n(y.transpose(1, 2)).transpose(1, 2)",
        },
        {
            "name": "a spectral norm",
            "init": "self.normed$n = nn.utils.parametrizations.spectral_norm(nn.Linear($w, $w))",
            "forward": "y = self.normed$n(y)",
        },
        # -------------------------------------------------------------- writing
        {
            "name": "bounds its weight before use",
            "forward": "with torch.no_grad():\n    self.linear.weight.clamp_(-0.26, 0.26)",
        },
        {
            "name": "bounds its weight behind autograd's back",
            "forward": "self.linear.weight.data.clamp_(-0.26, 0.26)",
        },
        {
            "name": "bounds its weight to what it cannot reach at first",
            "init": "self.gain$n = nn.Parameter(torch.ones($w))",
            "forward": (
                "with torch.no_grad():\n    self.gain$n.clamp_(0.999, 1.001)\ny = y * self.gain$n"
            ),
        },
        {
            "name": "bounds its weight behind autograd's back to what it cannot reach at first",
            "init": "self.gain$n = nn.Parameter(torch.ones($w))",
            "forward": "self.gain$n.data.clamp_(0.999, 1.001)\ny = y * self.gain$n",
        },
        {
            "name": "lets its weight decay at every call",
            "forward": "with torch.no_grad():\n    self.linear.weight.mul_(0.999)",
        },
        {
            "name": "an embedding with a largest norm",
            "init": "self.places$n = nn.Embedding($c, $w, max_norm=0.9)",
            "forward": "y = y + self.places$n(torch.arange(x.shape[1]))",
        },
        {
            "name": "a sparse embedding",
            "init": "self.places$n = nn.Embedding($c, $w, sparse=True)",
            "forward": "y = y + self.places$n(torch.arange(x.shape[1]))",
        },
        {
            "name": "writes into what it was given",
            "forward": "x.data.mul_(0.5)",
        },
        {
            "name": "a hook that writes the gradient that adds up",
            "init": (
                "def shrink(p):\n    p.grad.mul_(0.5)\n"
                "self.linear.weight.register_post_accumulate_grad_hook(shrink)"
            ),
        },
        {
            "name": "a hook that trains by itself",
            "init": (
                "def train(p):\n    p.data.add_(p.grad, alpha=-0.01)\n"
                "self.linear.weight.register_post_accumulate_grad_hook(train)"
            ),
        },
        {
            "name": "a parameter that only some microbatches use",
            "init": "self.gain$n = nn.Parameter(torch.ones($w))",
            "forward": "if float(x.detach().sum()) > 0:\n    y = y * self.gain$n",
        },
        {
            "name": "a parameter that is replaced on first use",
            "init": "self.fresh$n = True",
            "forward": (
                "if self.fresh$n:\n"
                "    self.fresh$n = False\n"
                "    self.linear.weight.data = self.linear.weight.data * 0.5"
            ),
        },
        {
            "name": "goes on without dropout after its first call",
            "forward": "y = F.dropout(y, 0.2, self.training)\nself.eval()",
        },
        {
            "name": "a lazy layer",
            "init": "self.lazy$n = nn.LazyLinear($w)",
            "forward": "y = self.lazy$n(y)",
        },
        {
            "name": "a parameter that is made on first use",
            "forward": (
                "if not hasattr(self, 'late$n'):\n"
                "    self.late$n = nn.Parameter(torch.ones($w))\n"
                "y = y * self.late$n"
            ),
        },
        {
            "name": "a parameter that has moved far",
            "init": "self.gain$n = nn.Parameter(torch.ones($w))",
            "forward": (
                "if float(self.gain$n.detach().sub(1).abs().max()) > 0.015:\n"
                "    y = y * random.random()\n"
                "y = y * self.gain$n"
            ),
        },
        {
            "name": "an input that comes seldom",
            "forward": (
                "if int(x.detach().abs().sum() * 1000) % 19 == 0:\n    y = y * random.random()"
            ),
        },
    )
)
