"""Nearest neighbours: how well labels follow from embeddings, without training anything."""

import numpy as np
import numpy.typing as npt
from sklearn.neighbors import NearestNeighbors


def knn_accuracy(
    known: npt.NDArray[np.floating],
    labels: npt.NDArray[np.int64],
    asked: npt.NDArray[np.floating] | None,
    answers: npt.NDArray[np.int64],
    k: int,
) -> float:
    """The share of `asked` [M, D] whose label most of the k nearest among `known` [N, D] have, by cosine.

    `asked` None: each of `known` among all others. Of classes with equally many the one with the smallest number wins.
    """
    finder = NearestNeighbors(n_neighbors=k, metric="cosine", algorithm="brute").fit(known.astype(np.float32))
    near = finder.kneighbors(None if asked is None else asked.astype(np.float32), return_distance=False)  # [M, k]
    votes = np.zeros((len(near), int(labels.max()) + 1), np.int32)
    for column in near.T:
        votes[np.arange(len(near)), labels[column]] += 1
    return float((votes.argmax(axis=1) == answers).mean())
