"""Uses an exported model: fits a head on a few labelled rows of one client and predicts its other rows. Needs NumPy.

    fedspan-aggregator export --config fleet.toml --out results
    python3 use_model.py results data.csv person gesture person-11 [LABELS] [RIDGE]

EXPORT is a directory of `fedspan-aggregator export` (or `model` of `fedspan-sim run --out`), with a representation.npy (d x k), or a
learned prior of heads (prior-mean.npy, d x classes; prior-covariance.npy, d x d), and, if the fleet has a scale, scale.npy (a row of
shifts, a row of factors). A prior of the last layer of a dense network comes with the layers before it (layer-0.npy and so on). DATA is a CSV file with a header: the columns CLIENT and TARGET, and the features, in the order in which the
fleet was trained. LABELS is the number of labelled rows of each class, 3 unless given, 0 with a learned prior for its mean head. RIDGE,
0.03 unless given, is for heads on a representation. The head (k or d x classes) is written to head.npy, for use_model.c.
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


def fit_with_prior(x, labels, mean, covariance):
    """Posterior mean of a head whose columns have a normal prior: M + S x^T (x S x^T + I)^-1 (y - x M)."""
    y = numpy.eye(mean.shape[1])[labels]
    spread = x @ covariance
    return mean + spread.T @ numpy.linalg.solve(spread @ x.T + numpy.eye(len(x)), y - x @ mean)


def body_outputs(x, export):
    """Outputs of the layers before the last one of a dense network, and a constant 1; x itself without such layers."""
    number = 0
    while os.path.exists(f"{export}/layer-{number}.npy"):
        layer = numpy.load(f"{export}/layer-{number}.npy")
        if x.shape[1] != layer.shape[0]:
            sys.exit(f"{export}: layer {number} has {layer.shape[0] - 1} inputs and not {x.shape[1] - 1}; only dense layers are computed here")
        x = numpy.hstack([numpy.maximum(x @ layer, 0), numpy.ones((len(x), 1))])
        number += 1
    return x


def number(text, kind, least, what):
    """Argument as a number of this kind, of at least `least`."""
    try:
        value = kind(text)
    except ValueError:
        sys.exit(f"{what}: found {text!r}, expected a number")
    if value < least:
        sys.exit(f"{what}: found {text}, expected at least {least}")
    return value


def main(export, data, client_column, target_column, client, labels_per_class=3, ridge=0.03):
    has_prior = os.path.exists(f"{export}/prior-mean.npy")
    if not has_prior and not os.path.exists(f"{export}/representation.npy"):
        sys.exit(f"{export}: neither representation.npy nor prior-mean.npy: no linear model, or the fleet has not learned its prior yet")
    labels_per_class = number(labels_per_class, int, 0 if has_prior else 1, "LABELS")
    ridge = number(ridge, float, 0, "RIDGE")
    model = numpy.load(f"{export}/{'prior-mean' if has_prior else 'representation'}.npy")
    x, labels, classes = read_rows(data, client_column, target_column, client)
    if has_prior and model.shape[1] < len(classes):
        sys.exit(f"{data}: {len(classes)} classes, but the model has {model.shape[1]}")
    if os.path.exists(f"{export}/scale.npy"):
        shift, factor = numpy.load(f"{export}/scale.npy")
        if x.shape[1] < len(shift):
            sys.exit(f"{data}: {x.shape[1] - 1} features, but the scale of the model has {len(shift)}")
        # A network has no constant feature, but biases.
        x[:, : len(shift)] = (x[:, : len(shift)] - shift) * factor
    if has_prior:
        x = body_outputs(x, export)
    if x.shape[1] != model.shape[0]:
        sys.exit(
            f"{data}: {x.shape[1] - 1} features, but the model has {model.shape[0] - 1}: leave out the columns that the "
            "scenario leaves out (its `features`)"
        )
    labelled = [i for c in range(len(classes)) for i in numpy.flatnonzero(labels == c)[:labels_per_class]]
    if has_prior:
        head = fit_with_prior(x[labelled], labels[labelled], model, numpy.load(f"{export}/prior-covariance.npy"))
    else:
        x = x @ model
        head = fit_head(x[labelled], labels[labelled], len(classes), ridge)
    numpy.save("head.npy", head)
    predicted = (x @ head).argmax(axis=1)
    rest = numpy.setdiff1d(numpy.arange(len(labels)), labelled)
    print(f"{client}: head fitted on {len(labelled)} rows, {(predicted == labels)[rest].mean():.3f} of the other {len(rest)} rows right")
    for index, name in enumerate(classes):
        print(f"class {index} is {name}, predicted for {(predicted == index).sum()} rows")


if len(sys.argv) not in range(6, 9):
    sys.exit(__doc__)
main(*sys.argv[1:])
