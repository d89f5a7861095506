"""Runs the Python blocks of a Markdown page in the current directory. A block that prints a class, a score and a line of
predictions.csv must print the same class, and the same score but for rounding."""

import ast
import contextlib
import io
import re
import sys


def check_prediction(printed):
    predicted, score, line = re.match(r"(\S+) (\S+) (\{.*\})$", printed).groups()
    line = ast.literal_eval(line)
    assert predicted == line["predicted"], printed
    assert abs(float(score) - float(line["score"])) < 1e-5, printed


def main(page):
    blocks = re.findall(r"```python\n(.*?)```", open(page, encoding="utf-8").read(), re.S)
    assert blocks, f"{page}: no Python block"
    predictions = 0
    for block in blocks:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(block, page, "exec"), {})
        for printed in output.getvalue().splitlines():
            check_prediction(printed)
            predictions += 1
    assert predictions > 0, f"{page}: no block prints a prediction"
    print(f"{page}: {len(blocks)} blocks run, {predictions} predictions equal those of the simulator")


main(sys.argv[1])
