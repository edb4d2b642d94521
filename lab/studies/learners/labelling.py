"""ODMC against k-means and spectral clustering, ssODM against SVM, self-training and label spreading.

On a third of the training part of four sets, at most 1000 rows, scaled to [0, 1] for all methods, each with
fixed hyper-parameters: ours with their defaults. ODMC, k-means and spectral clustering (graph of nearest
neighbours) with ten seeds: normalised mutual information, and accuracy under the best naming of clusters.
ssODM, SVM (RBF, C 10), the same SVM, calibrated, in ``SelfTrainingClassifier``, and ``LabelSpreading`` (10
neighbours) with 5, 10 and 50 labels a class (at most half of a class), drawn anew for ten seeds: accuracy on
the other rows.

``labelling``: the means in per cent, by set. ``odmc_nmi_vs_best``, ``odmc_accuracy_vs_best``: the mean over
the sets of ODMC's value less that of the better baseline, in points; ``ssodm_accuracy_vs_best``: the same of
ssODM, by number of labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans, SpectralClustering
from sklearn.metrics import normalized_mutual_info_score
from sklearn.preprocessing import MinMaxScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier
from sklearn.svm import SVC

from core.data.dataset import LabelledData
from core.labelling.odmc import ODMC
from core.labelling.ssodm import SsODM
from core.run import Run
from lab.studies.learners.margins import load, taken

SETS = ("mfeat", "satimage", "segment", "usps")
LABELS = (5, 10, 50)


def measure(quick: bool = False) -> dict[str, Any]:
    """The figures above. quick: 2 seeds and 400 rows."""
    seeds, rows = (2, 400) if quick else (10, 1000)
    figures: dict[str, Any] = {}
    for name in SETS:
        data = third(load(name), rows)
        figures[name] = {
            "clusters": mean_of([clustered(data, seed) for seed in range(seeds)]),
            **{
                str(count): mean_of([dict(labelled(data, count, seed)) for seed in range(seeds)])
                for count in LABELS
            },
        }
        print(f"{name}: {figures[name]}", flush=True)
    clusters = [figures[name]["clusters"] for name in SETS]
    return {
        "labelling": figures,
        "odmc_nmi_vs_best": lead(clusters, "odmc", "nmi"),
        "odmc_accuracy_vs_best": lead(clusters, "odmc", "accuracy"),
        "ssodm_accuracy_vs_best": {
            str(count): lead([figures[name][str(count)] for name in SETS], "ssodm", "") for count in LABELS
        },
    }


def third(data: LabelledData, rows: int) -> LabelledData:
    """At most so many rows of a third of the data, scaled."""
    order = np.random.default_rng(0).permutation(data.n)[: data.n // 3][:rows]
    kept = taken(data, np.sort(order))
    return replace(kept, X=MinMaxScaler().fit_transform(kept.X))


def clustered(data: LabelledData, seed: int) -> dict[str, float]:
    """Both measures of all clusterings."""
    K, unknown = data.K, replace(data, y=np.full(data.n, -1, dtype=np.int32), classes=())
    spectral = SpectralClustering(K, affinity="nearest_neighbors", n_neighbors=10, random_state=seed)
    found = {
        "odmc": ODMC(clusters=K).label(unknown, Run(seed, n_threads=1)).codes,
        "kmeans": KMeans(K, n_init=10, random_state=seed).fit_predict(data.X),
        "spectral": spectral.fit_predict(data.X),
    }
    measured = {}
    for name, codes in found.items():
        measured[f"{name} nmi"] = float(normalized_mutual_info_score(data.y, codes))
        measured[f"{name} accuracy"] = matched(data.y, codes)
    return measured


def matched(truth: np.ndarray, codes: np.ndarray) -> float:
    """The share of rows that are right under the best naming of clusters."""
    table = np.zeros((truth.max() + 1, codes.max() + 1))
    np.add.at(table, (truth, codes), 1)
    return float(table[linear_sum_assignment(-table)].sum() / len(truth))


def labelled(data: LabelledData, count: int, seed: int) -> Iterator[tuple[str, float]]:
    """The accuracy of every method on rows without a label."""
    rng = np.random.default_rng(seed)
    y = np.full(data.n, -1, dtype=np.int32)
    for code in range(data.K):
        rows = rng.permutation(np.flatnonzero(data.y == code))
        y[rows[: min(count, len(rows) // 2)]] = code
    known, X = y >= 0, data.X
    partly = replace(data, y=y)
    answers = {
        "ssodm": SsODM().label(partly, Run(seed, n_threads=1)).codes,
        "svm": SVC(C=10).fit(X[known], y[known]).predict(X),
        "self-training": SelfTrainingClassifier(CalibratedClassifierCV(SVC(C=10), ensemble=False))
        .fit(X, y)
        .predict(X),
        "label spreading": LabelSpreading(kernel="knn", n_neighbors=10).fit(X, y).transduction_,
    }
    for name, codes in answers.items():
        yield name, float((codes == data.y)[~known].mean())


def mean_of(measured: list[dict[str, float]]) -> dict[str, float]:
    """Means over seeds, in per cent."""
    return {key: round(100 * float(np.mean([one[key] for one in measured])), 2) for key in measured[0]}


def lead(measured: list[dict[str, float]], name: str, what: str) -> float:
    """The mean over sets of a method's value less the best of the others'."""
    own = f"{name} {what}".strip()
    leads = [
        one[own] - max(value for key, value in one.items() if key != own and key.endswith(what))
        for one in measured
    ]
    return round(float(np.mean(leads)), 2)
