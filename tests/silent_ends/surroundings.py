"""Habits that make bits hang on what surrounds a process: its clock, names, folders and neighbours.

A case with one of these may train to the calm run's bits, or be refused, or end with a named fault.
"""

from tests.silent_ends.feature import Edit, Feature

SURROUNDINGS: tuple[Feature, ...] = tuple(
    Feature(honest=False, **piece)  # type: ignore[arg-type]
    for piece in (
        # -------------------------------------------------------------- neighbours in one process
        {
            "name": "counts how many were built",
            "methods": "built$n = 0",
            "init": "type(self).built$n += 1\nself.depth$n = type(self).built$n",
            "forward": "y = y / self.depth$n",
        },
        {
            "name": "counts how many were built, in a first value",
            "methods": "built$n = 0",
            "init": (
                "type(self).built$n += 1\nself.linear.weight.data.mul_(1 / type(self).built$n)"
            ),
        },
        {
            "name": "counts how many of all were built",
            "everywhere": True,
            "top": "BUILT = []",
            "init": "BUILT.append(1)\nself.depth$n = len(BUILT)",
            "forward": "y = y / self.depth$n",
        },
        {
            "name": "another type of numbers from the next layer on",
            "init": "torch.set_default_dtype(torch.float64)",
        },
        {
            "name": "a switch for all, set in forward",
            "forward": "torch.set_flush_denormal(True)\ny = y * 1e-38 * 1e-2 * 1e38 + y",
        },
        {
            "name": "another number of threads",
            "top": "torch.set_num_threads(3)",
        },
        {
            "name": "what a layer leaves for the next, by name",
            "everywhere": True,
            "top": "LEFT = {}",
            "forward": (
                "y = y + 0.1 * LEFT.get('y', torch.zeros(()))\nLEFT['y'] = y.detach().mean()"
            ),
        },
        {
            "name": "what a layer leaves for itself, by microbatch",
            "top": "LEFT$n = {}",
            "forward": "y = y + LEFT$n.setdefault(x.shape, y.detach().mean())",
        },
        {
            "name": "what each input made is kept",
            "init": "self.kept$n = {}",
            "forward": (
                "key = round(float(x.detach().sum()), 1)\n"
                "y = y + self.kept$n.setdefault(key, float(y.detach().mean()))"
            ),
        },
        {
            "name": "a list that grows with every layer",
            "everywhere": True,
            "top": "def note$n(of=[]):\n    of.append(1)\n    return len(of)",
            "init": "self.place$n = note$n()",
            "forward": "y = y / self.place$n",
        },
        # -------------------------------------------------------------- order, names and places
        {
            "name": "the order of a set of words",
            "top": 'ORDER$n = list({"alpha", "beta", "gamma", "delta", "epsilon"})',
            "forward": 'y = y * (1 + ORDER$n.index("gamma"))',
        },
        {
            "name": "a sum in the order of a set",
            "top": (
                'SUM$n = 0.0\nfor one in {"0.1", "0.7", "1e9", "-1e9"}:\n    SUM$n += float(one)'
            ),
            "forward": "y = y * (1 + SUM$n)",
        },
        {
            "name": "the hash of a word",
            "init": "self.gain$n = hash(type(self).__name__) % 7",
            "forward": "y = y * (1 + self.gain$n)",
        },
        {
            "name": "parameters in the order of a set",
            "init": (
                "for name in {'one', 'two', 'three', 'four'}:\n"
                "    setattr(self, name, nn.Linear($w, $w))"
            ),
            "forward": "y = self.four(self.three(self.two(self.one(y))))",
        },
        {
            "name": "the address of an object",
            "init": "self.gain$n = id(self) // 16 % 100003",
            "forward": "y = y * (1 + self.gain$n / 1e5)",
        },
        {
            "name": "the number of its process",
            "top": "GAIN$n = os.getpid() % 10007",
            "forward": "y = y * (1 + GAIN$n / 1e5)",
        },
        {
            "name": "the folder that it lies in",
            "top": "GAIN$n = sum(map(ord, str(HERE)))",
            "forward": "y = y * (1 + GAIN$n / 1e5)",
        },
        {
            "name": "the name of its module",
            "top": "GAIN$n = len(__name__)",
            "forward": "y = y / GAIN$n",
        },
        {
            "name": "the working folder",
            "top": "GAIN$n = len(os.getcwd())",
            "forward": "y = y * (1 + GAIN$n)",
        },
        {
            "name": "a file by its name alone",
            "top": 'GAIN$n = float(open("gain$n.txt").read())',
            "forward": "y = y * GAIN$n",
            "files": {"gain$n.txt": "0.7"},
            "edits": (Edit(path="gain$n.txt", text="1.3"), Edit(path="gain$n.txt", text=None)),
        },
        {
            "name": "how it was called",
            "top": "GAIN$n = len(' '.join(sys.argv))",
            "forward": "y = y * (1 + GAIN$n)",
        },
        {
            "name": "the environment",
            "top": 'GAIN$n = float(os.environ.get("MODEL_GAIN", "1.0"))',
            "forward": "y = y * GAIN$n",
        },
        {
            "name": "the environment in forward",
            "forward": 'y = y * float(os.environ.get("MODEL_GAIN", "1.0"))',
        },
        {
            "name": "the number of its node",
            "init": 'self.gain$n = 1 + int(os.environ.get("NODE_RANK", "0"))',
            "forward": "y = y * self.gain$n",
        },
        # -------------------------------------------------------------- clocks
        {
            "name": "the clock when the module is imported",
            "top": "GAIN$n = time.time_ns() // 1000 % 100003",
            "forward": "y = y * (1 + GAIN$n / 1e5)",
        },
        {
            "name": "the clock when a layer is built",
            "init": "self.gain$n = time.perf_counter_ns() // 1000 % 100003",
            "forward": "y = y * (1 + self.gain$n / 1e5)",
        },
        {
            "name": "the clock in forward",
            "forward": "y = y * (1 + time.time_ns() // 1000 % 100003 / 1e5)",
        },
        {
            "name": "the clock in seconds",
            "top": "GAIN$n = datetime.datetime.now().second",
            "forward": "y = y * (1 + GAIN$n / 1e5)",
        },
        {
            "name": "how long ago it was imported",
            "top": "BEGAN$n = time.monotonic()",
            "forward": "y = y * (0.5 if time.monotonic() - BEGAN$n > 60 else 1.0)",
        },
        # -------------------------------------------------------------- files
        {
            "name": "a file read in forward",
            "forward": 'y = y * float((HERE / "gain$n.txt").read_text())',
            "files": {"gain$n.txt": "0.7"},
            "edits": (Edit(path="gain$n.txt", text="1.3"), Edit(path="gain$n.txt", text=None)),
        },
        {
            "name": "a file that it writes at every import",
            "top": (
                'NOTE$n = HERE / "note$n.txt"\n'
                "COUNT$n = int(NOTE$n.read_text()) + 1\n"
                "NOTE$n.write_text(str(COUNT$n))"
            ),
            "forward": "y = y / COUNT$n",
            "files": {"note$n.txt": "0"},
        },
        {
            "name": "a file that is there or not",
            "top": 'GAIN$n = 0.5 if (HERE / "half$n").exists() else 1.0',
            "forward": "y = y * GAIN$n",
            "edits": (Edit(path="half$n", text=""),),
        },
        {
            "name": "how many files lie beside it",
            "top": "GAIN$n = len(os.listdir(HERE))",
            "forward": "y = y / GAIN$n",
            "edits": (Edit(path="other$n.txt", text=""),),
        },
        {
            "name": "when a file was written",
            "top": "GAIN$n = os.stat(__file__).st_mtime_ns // 1000 % 100003",
            "forward": "y = y * (1 + GAIN$n / 1e5)",
        },
        {
            "name": "code that it reads and runs",
            "top": 'exec((HERE / "more$n.txt").read_text())',
            "forward": "y = more$n(y)",
            "files": {"more$n.txt": "def more$n(y):\n    return y * 0.6\n"},
            "edits": (Edit(path="more$n.txt", text="def more$n(y):\n    return y * 1.6\n"),),
        },
        {
            "name": "what another process says",
            "top": (
                'GAIN$n = float(subprocess.run(["cat", HERE / "said$n.txt"], '
                "capture_output=True, text=True, check=True).stdout)"
            ),
            "forward": "y = y * GAIN$n",
            "files": {"said$n.txt": "0.4"},
            "edits": (Edit(path="said$n.txt", text="1.4"),),
        },
        {
            "name": "an import from a folder that it adds to the path",
            "top": 'sys.path.insert(0, str(HERE / "lib$n"))\nfrom added$n import gain as gain$n',
            "forward": "y = gain$n(y)",
            "files": {"lib$n/added$n.py": "def gain(y):\n    return y * 0.3\n"},
            "edits": (Edit(path="lib$n/added$n.py", text="def gain(y):\n    return y * 1.3\n"),),
        },
        {
            "name": "a module that is loaded by its path",
            "top": (
                "import importlib.util\n"
                'FOUND$n = importlib.util.spec_from_file_location("x$n", HERE / "by_path$n.py")\n'
                "LOADED$n = importlib.util.module_from_spec(FOUND$n)\n"
                "FOUND$n.loader.exec_module(LOADED$n)"
            ),
            "forward": "y = LOADED$n.gain(y)",
            "files": {"by_path$n.py": "def gain(y):\n    return y * 0.3\n"},
            "edits": (Edit(path="by_path$n.py", text="def gain(y):\n    return y * 1.3\n"),),
        },
        # -------------------------------------------------------------- how it is called
        {
            "name": "whether its input is a leaf",
            "forward": "y = y * 0.5 if x.is_leaf else y",
        },
        {
            "name": "what made its input",
            "forward": "y = y * (1 + len(type(x.grad_fn).__name__) % 5)",
        },
        {
            "name": "how many threads there are",
            "forward": "y = y * threading.active_count()",
        },
        {
            "name": "how many modules are loaded",
            "top": "GAIN$n = len(sys.modules)",
            "forward": "y = y * (1 + GAIN$n / 1e5)",
        },
        {
            "name": "how much memory it has",
            "forward": "y = y * (1 + resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e5)",
        },
    )
)
