"""A share that does not depend on who draws it."""

import numpy as np
import pytest

from native.sampling import sample


def drawn(places, share):
    out = np.empty(len(places), bool)
    places.flags.writeable = False
    sample(places, int(share * 2**32), out)
    return out


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
def test_the_share_is_drawn(share):
    places = np.arange(0, 20_000 << 16, 1 << 16)
    assert drawn(places, share).mean() == pytest.approx(share, abs=5 * np.sqrt(share * (1 - share) / 20_000))


def test_the_same_places_are_drawn_in_any_order_and_a_larger_share_holds_a_smaller():
    places = np.random.default_rng(0).integers(0, 2**62, 1000)
    few, many = drawn(places, 0.1), drawn(places, 0.3)
    assert (drawn(places[::-1].copy(), 0.1)[::-1] == few).all()
    assert (many | ~few).all()
    assert len(drawn(places[:0].copy(), 0.5)) == 0
