"""`dumps_by_value`: pickles that processes can read which do not have the user's own modules.

It is apart from workers because tasks say themselves how they are shared.
"""

from __future__ import annotations

import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any


def dumps_by_value(value: Any) -> bytes:
    """Return a pickle that holds the code of classes and functions of the user's own modules, such as a script or a notebook.

    Code of finpod, of the standard library and of installed packages is named only; the reader must have it too.
    """
    import cloudpickle

    own = [module for name, module in list(sys.modules.items()) if name != "__main__" and _is_own(module)]
    known = cloudpickle.list_registry_pickle_by_value()
    own = [module for module in own if module.__name__ in sys.modules and module.__name__ not in known]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        content: bytes = cloudpickle.dumps(value)
        return content
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


def _is_own(module: ModuleType) -> bool:
    """Whether a module comes from a file that is neither installed nor finpod's."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py"):
        return False
    path = Path(file).absolute()
    return not any(path.is_relative_to(folder) for folder in _installed())


@cache
def _installed() -> frozenset[Path]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [Path(sysconfig.get_path(name)) for name in names] + [Path(__file__).parent]
    return frozenset(path for folder in folders for path in (folder.absolute(), folder.resolve()))
