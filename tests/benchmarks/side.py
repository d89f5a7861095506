"""The lines that a rival in Python prints and reads, as `tests/src/benchmarks/side.rs` does on our side: facts as JSON,
then for each line with a number of repeats the seconds that they took and a check value."""

import importlib
import json
import sys
from pathlib import Path

MISSING = 77  # Exit code of a rival that lacks a library.


def need(name):
    """Imports a library, or ends this program in the way that means: it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        print(error, file=sys.stderr)
        sys.exit(MISSING)


class Data:
    """Sizes and values that our side has written into the directory of the first argument."""

    def __init__(self):
        self.directory, self.form = Path(sys.argv[1]), sys.argv[2]
        self.sizes = json.loads((self.directory / "sizes.json").read_text())

    def array(self, name, *shape):
        values = need("numpy").fromfile(self.directory / f"{name}.f32", "float32")
        return values.reshape(shape)

    def pick(self, forms):
        """Returns the function of the form that the second argument names."""
        if self.form not in forms:
            sys.exit(f"found form {self.form!r}, allowed: {', '.join(forms)}")
        return forms[self.form]


def numpy_version():
    """Returns the versions of numpy and of its BLAS."""
    numpy = need("numpy")
    blas = numpy.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"numpy {numpy.__version__}, {blas['name']} {blas['version']}"


def serve(program, form, dtype, n, turn):
    """Answers requests until the standard input ends; `turn` returns seconds and check value for a number of repeats."""
    print(json.dumps({"program": program, "form": form, "dtype": dtype, "n": n}), flush=True)
    for line in sys.stdin:
        seconds, check = turn(int(line))
        print(f"{seconds!r} {float(check)!r}", flush=True)
