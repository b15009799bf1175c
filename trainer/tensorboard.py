"""The live metrics for TensorBoard: windowed and faded, warm and cold, beside the loss."""

from __future__ import annotations

import math
import time
from pathlib import Path

import tensorflow as tf

from trainer.prequential import Prequential


class TensorBoard:
    """Writes scalars of one worker below a folder of its own, against the events learned. At most every few seconds.

    A figure that does not exist yet (no test, one label only) is left out, not written as NaN.
    """

    def __init__(self, folder: str, worker: str, every_s: float = 5.0) -> None:
        """folder: `trainer.tensorboard_dir`; worker: name of the sub-folder, which is made with the first figure."""
        self._path, self._every_s = Path(folder) / worker, every_s
        self._writer: tf.summary.SummaryWriter | None = None
        self._written_s = -math.inf

    def write(self, prequential: Prequential, loss: float, events: int) -> None:
        """Write what there is, if it is time. events: learned so far by this worker, the axis of it all."""
        now = time.monotonic()
        if now - self._written_s < self._every_s:
            return
        self._written_s = now
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(str(self._path))
        with self._writer.as_default(step=events):
            _scalar("loss", loss)
            for name, value in figures(prequential).items():
                _scalar(name, value)
        self._writer.flush()


def _scalar(name: str, value: float) -> None:
    """`tf.summary.scalar`, which needs the package tensorboard where it writes: only who reads should need that."""
    kind = tf.compat.v1.SummaryMetadata
    metadata = kind(plugin_data=kind.PluginData(plugin_name="scalars"), data_class=1)  # DATA_CLASS_SCALAR
    tf.summary.write(name, tf.constant(value, tf.float32), metadata=metadata)


def figures(prequential: Prequential) -> dict[str, float]:
    """By name, those that are finite: metric/ranking/over, as `hr10/warm/recent`; and those of label events."""
    k, found = prequential.k, {}
    scores = {"model": prequential.model, "warm": prequential.warm, "cold": prequential.cold,
              "popularity": prequential.popularity, "frozen": prequential.frozen}  # fmt: skip
    for ranking, score in scores.items():
        if score.tests:
            for over, values in (("recent", score.recent_figures()), ("faded", score.faded_figures())):
                for metric, value in zip((f"hr{k}", f"ndcg{k}", "mrr"), values, strict=True):
                    found[f"{metric}/{ranking}/{over}"] = value
    labels = prequential.labels
    found |= {"labels/log_loss/recent": labels.recent, "labels/log_loss/faded": labels.faded, "labels/auc": labels.auc}
    return {name: value for name, value in found.items() if math.isfinite(value)}
