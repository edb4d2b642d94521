"""What statsmodels and cleanlab say of arrays in a file, for an environment that has them: FILE.npz to
OUT.npz.
"""

from __future__ import annotations

import sys

import numpy as np
from cleanlab.filter import find_label_issues
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint


def main(source: str, target: str) -> None:
    given = np.load(source, allow_pickle=False)
    hits, trials = given["hits"], given["trials"]
    found = {
        name: np.array(proportion_confint(hits, trials, 0.05, method))
        for name, method in (("exact", "beta"), ("wilson", "wilson"))
    }
    found["mcnemar"] = np.array(
        [
            mcnemar([[0, b], [c, 0]], exact=True).pvalue
            for b, c in zip(given["lost"], given["won"], strict=True)
        ]
    )
    found["holm"] = np.array([multipletests(p, method="holm")[1] for p in given["p"]])
    found["rows"] = find_label_issues(
        given["labels"],
        given["probabilities"],
        filter_by="confident_learning",
        return_indices_ranked_by="self_confidence",
        n_jobs=1,
    )
    np.savez(target, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
