"""Whether a mirror's coarse rows are those of its outputs."""

import numpy as np

from native.coarse import encode


def assert_in_step(mirror):
    """Codes and scales of every slot in use, against encoding its output anew."""
    with mirror.lock:
        outputs, _, _ = mirror.columns()
        codes, scales = mirror.coarse()
        anew, anew_scales = np.zeros_like(codes), np.zeros_like(scales)
        encode(outputs, np.arange(len(outputs)), anew, anew_scales)
        np.testing.assert_array_equal(scales[: len(outputs)], anew_scales[: len(outputs)])
        np.testing.assert_array_equal(codes, anew)
