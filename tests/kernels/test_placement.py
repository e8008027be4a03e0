"""Keys keep their groups for ever, and spread evenly."""

import numpy as np
import pyarrow as pa

from penstock.kernels.placement import groups_of, hashes_of


def groups(values: object, kind: pa.DataType, *, count: int = 16) -> list[int]:
    return groups_of(pa.table({"k": pa.array(values, type=kind)}), keys=["k"], groups=count).tolist()  # type: ignore[no-any-return]


def test_known_values_never_change() -> None:
    hashes = hashes_of(pa.table({"k": ["", "a", "area-1", None], "n": [0, 7, -1, None]}), keys=["k", "n"])
    assert hashes.tolist() == KNOWN


def test_the_width_of_a_number_does_not_matter() -> None:
    assert groups([0, 7, -3], pa.int32()) == groups([0, 7, -3], pa.int64())
    assert groups([0.5, -0.0], pa.float32()) == groups([0.5, 0.0], pa.float64())


def test_text_is_the_same_key_in_every_layout() -> None:
    plain = groups(["x", "yy", None, "x"], pa.string())
    assert groups(["x", "yy", None, "x"], pa.large_string()) == plain
    assert groups(["x", "yy", None, "x"], pa.string_view()) == plain
    assert groups_of(pa.table({"k": pa.array(["x", "yy", None, "x"]).dictionary_encode()}), keys=["k"], groups=16).tolist() == plain
    sliced = pa.table({"k": ["skip", "x", "yy", None, "x"]}).slice(1)
    assert groups_of(sliced, keys=["k"], groups=16).tolist() == plain


def test_keys_spread_evenly() -> None:
    counts = np.bincount(groups([f"sensor-{i}" for i in range(16_000)], pa.string()), minlength=16)
    assert counts.min() > 800
    assert counts.max() < 1_200


KNOWN = [17140536396912920442, 7410053703112261972, 10969288444481891116, 14683088052839314065]
