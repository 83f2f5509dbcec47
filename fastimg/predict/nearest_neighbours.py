"""Nearest neighbours: how well embeddings predict labels, without training."""

import numpy as np
import numpy.typing as npt
from sklearn.neighbors import NearestNeighbors


def knn_accuracy(
    known: npt.NDArray[np.floating],
    labels: npt.NDArray[np.int64],
    queries: npt.NDArray[np.floating] | None,
    truth: npt.NDArray[np.int64],
    k: int,
) -> float:
    """The fraction of `queries` [M, D] whose true label is the most frequent among the k nearest in `known` [N, D].

    Distances are cosines. With `queries` None, each of `known` is compared with all others. Ties go to the class with
    the smallest number.
    """
    finder = NearestNeighbors(n_neighbors=k, metric="cosine", algorithm="brute").fit(known.astype(np.float32))
    nearest = finder.kneighbors(
        None if queries is None else queries.astype(np.float32), return_distance=False
    )  # [M, k]
    votes = np.zeros((len(nearest), int(labels.max()) + 1), np.int32)
    for column in nearest.T:
        votes[np.arange(len(nearest)), labels[column]] += 1
    return float((votes.argmax(axis=1) == truth).mean())
