# What a program gets from `import bamboo`; `__init__.py` loads it when it is first asked for.

from bamboo.api import cost as cost
from bamboo.api import examine as examine
from bamboo.api import launch as launch
from bamboo.api import list_runs as list_runs
from bamboo.api import load_job as load_job
from bamboo.api import open_run as open_run
from bamboo.api import plan as plan
from bamboo.api import prices as prices
from bamboo.api import profile as profile
from bamboo.api import simulate as simulate
from bamboo.api import stop_all as stop_all
from bamboo.api import stop_run as stop_run
from bamboo.errors import BambooError as BambooError
from bamboo.errors import InputError as InputError
from bamboo.run_handle import Run as Run

__version__: str
