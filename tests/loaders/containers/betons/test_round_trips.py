"""Whatever a .beton is given, it gives back."""

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fastimg.loaders.containers.betons.files import BetonFile
from fastimg.loaders.containers.betons.kinds import BetonField

from .beton_samples import jpeg, same, write

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
KINDS = st.sampled_from(["rgb", "int", "float", "bytes", "json", "ndarray", "tensor"])
DTYPES = hnp.integer_dtypes() | hnp.floating_dtypes() | hnp.boolean_dtypes() | hnp.complex_number_dtypes()
VALUES = {
    "rgb": st.builds(jpeg, st.tuples(st.integers(1, 20), st.integers(1, 20)))
    | hnp.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3))),
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=50),
    "json": JSON,
}


@st.composite
def tables(draw):
    """Fields in any order, and a few samples of them."""
    fields, values = {}, {}
    for number, kind in enumerate(draw(st.lists(KINDS, min_size=1, max_size=6))):
        name = f"{kind}{number}"
        if kind in ("ndarray", "tensor"):
            field = BetonField(kind, draw(DTYPES), draw(hnp.array_shapes(max_dims=4, max_side=3)))
            elements = {"allow_nan": False} if field.dtype.kind in "fc" else None
            fields[name], values[name] = field, hnp.arrays(field.dtype, field.shape, elements=elements)
        else:
            fields[name], values[name] = BetonField(kind), VALUES[kind]
    return fields, draw(st.lists(st.fixed_dictionaries(values), max_size=4))


@settings(deadline=None, max_examples=60)
@given(tables())
def test_round_trip(tmp_path_factory, table):
    fields, samples = table
    path = tmp_path_factory.mktemp("beton") / "a.beton"
    write(path, fields, samples)
    with BetonFile(path) as reader:
        assert reader.fields == fields and reader.custom == () and len(reader) == len(samples)
        for number, sample in enumerate(samples):
            assert same(reader.sample(number), sample)
    path.unlink()


def test_json_bytes_are_unchanged(tmp_path):
    text = json.dumps({"é": 1}, ensure_ascii=False, indent=1).encode()
    write(tmp_path / "a.beton", {"about": BetonField("json")}, [{"about": text}])
    with BetonFile(tmp_path / "a.beton") as reader:
        assert reader.sample(0) == {"about": {"é": 1}}
        assert reader.extents("about")[1].tolist() == [len(text) + 1]
