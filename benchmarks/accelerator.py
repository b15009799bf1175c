"""The step of towers with layers on an accelerator beside the processor's: same gradients, and how many examples a
second. Runs where TensorFlow sees a GPU (a TensorFlow with CUDA: `pip install 'tensorflow[and-cuda]'`).

The last line is one JSON object; ends with 1 if a gradient differs by more than --tolerance of the largest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from benchmarks.machine import facts
from embedding_store.memory import MemoryStore
from embedding_store.model import ModelSettings
from trainer.dense import DenseWorker
from trainer.layered_step import has_accelerator, step_on_tensorflow, step_with_layers
from trainer.softmax_step import Gradients, SoftmaxStep

MODEL = ModelSettings(dim=64, clocks=(0.9,), learned_gates=False, dense_layers=(64, 32))
_SMOOTHING = 0.1
_ROUNDS = 20


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=4096)
    parser.add_argument("--groups", type=int, nargs="+", default=[512, 4096], help="each divides --examples")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="matrix units may round to fewer bits")
    parser.add_argument("--without", action="store_true", help="compare both on the processor where there is no other")
    arguments = parser.parse_args()
    if not has_accelerator() and not arguments.without:
        sys.exit("TensorFlow sees no GPU here; --without compares both steps on the processor")
    found = {str(group): compare(arguments.examples, group) for group in arguments.groups}
    devices = [d.name for d in tf.config.list_logical_devices("GPU")]
    print(json.dumps({"devices": devices, "tensorflow": tf.__version__, "groups": found} | facts()))
    if any(each["largest_difference"] > arguments.tolerance for each in found.values()):
        sys.exit(1)


def compare(examples: int, group: int) -> dict[str, float]:
    """Difference of the gradients as a share of the largest, and examples a second of both."""
    rng = np.random.default_rng(0)
    store = MemoryStore()
    for spec in MODEL.tables().values():
        store.create(spec)
    dense = DenseWorker(store, MODEL, 0.01)
    dense.read()
    users, items = (rng.normal(size=(examples, MODEL.dim)).astype(np.float32) for _ in range(2))
    prior, popularity, bias = (rng.normal(size=examples).astype(np.float32) for _ in range(3))
    mask = rng.random((examples, group)) < 0.95
    mask[np.arange(examples), np.arange(examples) % group] = True
    weight = rng.uniform(0.5, 2, examples).astype(np.float32)

    def run(step: SoftmaxStep) -> Callable[[], Gradients]:
        return lambda: step(users, items, prior, popularity, bias, mask, weight)

    here = run(step_with_layers(MODEL, dense, _SMOOTHING))
    there = run(step_on_tensorflow(MODEL, group, dense, _SMOOTHING))
    pairs = [
        (np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in zip(here()[1:], there()[1:], strict=True)
    ]
    return {
        "largest_difference": max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs),
        "processor_examples_per_s": round(examples / _seconds(here)),
        "tensorflow_examples_per_s": round(examples / _seconds(there)),
    }


def _seconds(step: Callable[[], Gradients]) -> float:
    took = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        step()
        took.append(time.perf_counter() - started)
    return statistics.median(took)


if __name__ == "__main__":
    main()
