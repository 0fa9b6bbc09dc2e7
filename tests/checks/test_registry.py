"""The list of checks does not depend on who imported one of them first."""

from __future__ import annotations

import subprocess
import sys

from doctor.checks.registry import MODULES, registered

PROGRAM = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
from doctor.checks.registry import registered
print([(c.id, c.kind) for c in registered()])
"""


def order(*first: str) -> str:
    argv = [sys.executable, "-c", PROGRAM, *first]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout


def test_the_order_is_that_of_the_modules_whatever_was_imported_first() -> None:
    assert order(*reversed(MODULES)) == order() == f"{[(c.id, c.kind) for c in registered()]}\n"


def test_every_module_registers_something() -> None:
    """A module without checks in the list would be imported for nothing."""
    assert {c.function.__module__ for c in registered()} == set(MODULES)
