"""Uses an exported model: fits a head on a few labelled rows of one client and predicts its other rows. Needs NumPy.

    fedspan-aggregator export --config fleet.toml --out results
    python3 use_model.py results data.csv person gesture person-11

EXPORT is a directory of `fedspan-aggregator export` (or `model` of `fedspan-sim run --out`), with representation.npy (d x k) and, if
the fleet has a scale, scale.npy (a row of shifts, a row of factors). DATA is a CSV file with a header: the columns CLIENT and TARGET,
and the features, in the order in which the fleet was trained. The head (k x classes) is written to head.npy, for use_model.c.
"""

import csv
import os
import sys

import numpy


def read_rows(path, client_column, target_column, client):
    """Rows of a client: features with a constant 1, and labels."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows or client_column not in rows[0] or target_column not in rows[0]:
        sys.exit(f"{path}: expected a header with {client_column} and {target_column}, and rows")
    names = [name for name in rows[0] if name not in (client_column, target_column)]
    classes = sorted({row[target_column] for row in rows})
    own = [row for row in rows if row[client_column] == client]
    if not own:
        sys.exit(f"{path}: no row with {client_column} = {client}")
    try:
        x = numpy.array([[float(row[name]) for name in names] + [1.0] for row in own])
    except (TypeError, ValueError) as error:
        sys.exit(f"{path}: a feature of {client} is missing or no number: {error}")
    return x, numpy.array([classes.index(row[target_column]) for row in own]), classes


def fit_head(z, labels, classes, ridge):
    """Ridge regression on 0 and 1, as devices fit their heads: argmin |z w - y|^2 / m + ridge |w|^2."""
    y = numpy.eye(classes)[labels]
    m, k = z.shape
    return numpy.linalg.solve(z.T @ z / m + ridge * numpy.eye(k), z.T @ y / m)


def main(export, data, client_column, target_column, client, labels_per_class=3, ridge=0.03):
    if not os.path.exists(f"{export}/representation.npy"):
        sys.exit(f"{export}: no representation.npy. Heads with a learned prior act on all features: model.safetensors has the prior")
    representation = numpy.load(f"{export}/representation.npy")
    x, labels, classes = read_rows(data, client_column, target_column, client)
    if x.shape[1] != representation.shape[0]:
        sys.exit(
            f"{data}: {x.shape[1] - 1} features, but the model has {representation.shape[0] - 1}: leave out the columns that the "
            "scenario leaves out (its `features`)"
        )
    if os.path.exists(f"{export}/scale.npy"):
        shift, factor = numpy.load(f"{export}/scale.npy")
        x = (x - shift) * factor
    z = x @ representation
    labelled = [i for c in range(len(classes)) for i in numpy.flatnonzero(labels == c)[: int(labels_per_class)]]
    head = fit_head(z[labelled], labels[labelled], len(classes), float(ridge))
    numpy.save("head.npy", head)
    predicted = (z @ head).argmax(axis=1)
    rest = numpy.setdiff1d(numpy.arange(len(labels)), labelled)
    print(f"{client}: head fitted on {len(labelled)} rows, {(predicted == labels)[rest].mean():.3f} of the other {len(rest)} rows right")
    for number, name in enumerate(classes):
        print(f"class {number} is {name}, predicted for {(predicted == number).sum()} rows")


if len(sys.argv) not in range(6, 9):
    sys.exit(__doc__)
main(*sys.argv[1:])
