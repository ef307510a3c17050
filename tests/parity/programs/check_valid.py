#!/usr/bin/env python3
"""Checks the exporter's summary of the valid sizes, for tests/parity/python_graph_test.cc.

    check_valid.py TORCH

TORCH is as in run_graph.py. Exit status 77: as in run_graph.py; 1: a summary is wrong, with its text.
"""

import pathlib
import sys
import types

from run_graph import import_torch

SYMBOLS = {
    "s0": {"input": "x", "dim": 0, "example": 3},
    "s1": {"input": "x", "dim": 1, "example": 8},
    "p0": {"tensor": "w", "dim": 0, "example": 8},
    "u0": {"data": True},
}
FULL = [[1, 4096]]
# The conditions, and the ranges of s0 and of s1 for which they hold.
CASES = {
    "no condition": ([], FULL, FULL),
    "a condition on one size": ([["le", "s1", 64]], FULL, [[1, 64]]),
    "a condition on a size and a parameter": ([["le", "s1", "p0"]], FULL, [[1, 8]]),
    "a text": ([["text", "f(s1)"]], [], []),
    "a text beside a condition": ([["le", "s1", 64], ["text", "f(s1)"]], [], []),
    "a text in a selection": ([["eq", ["select", ["text", "f(s1)"], "s1", 8], 8]], [], []),
    "a number that follows values": ([["le", "s1", "u0"]], [], []),
}


def main() -> int:
    import_torch(pathlib.Path(sys.argv[1]))
    sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "engine/models/program/export"))
    import export_program

    wrong = 0
    for name, (conditions, *expected) in CASES.items():
        guards = [{"condition": one, "text": str(one), "place": "model.py:1"} for one in conditions]
        found = export_program._valid(types.SimpleNamespace(symbols=SYMBOLS, guards=guards))
        got = [found[symbol]["ranges"] for symbol in ("s0", "s1")]
        if got != list(expected):
            wrong += 1
            print(f"{name}: {got}, expected {list(expected)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
