"""Trees of tensors: bit for bit there and back, whole or not at all, and every bad byte is a FileError."""

import contextlib
import copy
import json
import math
import pickle
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from afec.files import MAX_DEPTH, FileError, load_tree, save_tree


def same(a, b):
    """Equal in type, order, bits, dtype and shape."""
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert type(b) is torch.Tensor
        a, b = (t.resolve_conj().clone(memory_format=torch.contiguous_format).flatten() for t in (a, b))
        return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    if isinstance(a, dict):
        keys = [(type(k), k) for k in a] == [(type(k), k) for k in b]
        return type(b) is dict and keys and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if type(a) is float:
        return type(b) is float and struct.pack("d", a) == struct.pack("d", b)
    return type(a) is type(b) and a == b


def there_and_back(path, tree):
    save_tree(path, tree)
    return load_tree(path)


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=5))
    values = draw(st.lists(st.integers(-128, 127), min_size=math.prod(shape), max_size=math.prod(shape)))
    tensor = torch.tensor(values, dtype=torch.int8).reshape(shape).to(draw(st.sampled_from(DTYPES)))
    return tensor.permute(draw(st.permutations(range(len(shape)))))


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | tensors()
keys = st.text(max_size=5) | st.integers() | st.sampled_from(["a.b", "a", "b", "1", "__metadata__", ""])
trees = st.recursive(
    leaves,
    lambda inner: (
        st.dictionaries(keys, inner, max_size=4) | st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple)
    ),
    max_leaves=15,
)


@given(tree=trees)
def test_any_tree_comes_back_bit_for_bit(tmp_path_factory, tree):
    assert same(tree, there_and_back(tmp_path_factory.getbasetemp() / "tree.safetensors", tree))


def test_keys_types_and_odd_numbers_are_kept(tmp_path):
    tree = {
        1: "int",
        "1": "str",
        "tuple": (1, [2.0, ()], {}),
        "numbers": [math.nan, -math.nan, math.inf, -math.inf, -0.0, 5e-324, 2**70, -(2**64), 2**63, 0.1, True, 1],
        "text": 'é\ud800\x00"',
        "none": None,
    }
    back = there_and_back(tmp_path / "t", tree)
    assert same(tree, back)
    assert list(back) == list(tree)


def test_every_kind_of_tensor_is_kept(tmp_path):
    x = torch.randn(2, 3, 4, 5)
    tree = {
        "scalar": torch.tensor(3.5),
        "empty": [torch.zeros(0), torch.zeros(2, 0, 3, dtype=torch.bfloat16)],
        "transposed": x[0, 0].T,
        "strided": x[..., ::2],
        "expanded": torch.tensor([1, 2]).expand(3, 2),
        "bits": torch.tensor([math.nan, -0.0, math.inf]),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "negative": torch.tensor([1 + 2j]).conj().imag,
        "kinds": [torch.ones(2).to(d) for d in (*DTYPES, torch.uint16, torch.uint64, torch.float8_e4m3fn, torch.int8)],
    }
    assert same(tree, there_and_back(tmp_path / "t", tree))


def test_channels_last_is_kept_stride_by_stride(tmp_path):
    images, kernel = torch.randn(2, 3, 4, 5), torch.randn(8, 3, 1, 1)
    video = torch.randn(2, 3, 2, 4, 5)
    tree = [
        *(images, images.to(memory_format=torch.channels_last)),
        *(kernel, nn.Conv2d(3, 8, 1).to(memory_format=torch.channels_last).weight.detach()),
        *(video, video.to(memory_format=torch.channels_last_3d)),
        torch.zeros(2, 3, 0, 4).to(memory_format=torch.channels_last),
    ]
    assert tree[3].stride() != tree[2].stride()  # a 1×1 kernel is contiguous both ways; its strides say which is meant
    back = there_and_back(tmp_path / "t", tree)
    assert same(tree, back)
    assert [t.stride() for t in back] == [t.stride() for t in tree]


def test_shared_memory_comes_back_apart_and_is_not_touched(tmp_path):
    x = torch.arange(10.0)
    back = there_and_back(tmp_path / "t", {"whole": x, "again": x, "part": x[2:5], "other": x[4:8]})
    assert same(back, {"whole": x, "again": x, "part": x[2:5], "other": x[4:8]})
    back["whole"].zero_()
    assert back["again"].equal(torch.arange(10.0))
    assert x.equal(torch.arange(10.0))


def test_a_net_and_its_optimiser_go_on_bit_for_bit(tmp_path):
    def step(net, optimizer):
        optimizer.zero_grad()
        net(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()

    net = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(net.parameters(), betas=(0.5, 0.9))
    step(net, optimizer)
    save_tree(tmp_path / "t", {"net": net.state_dict(), "optimizer": optimizer.state_dict()})
    other = nn.Linear(3, 2)
    other_optimizer = torch.optim.Adam(other.parameters())
    back = load_tree(tmp_path / "t")
    other.load_state_dict(back["net"])
    other_optimizer.load_state_dict(back["optimizer"])
    step(net, optimizer)
    step(other, other_optimizer)
    assert other.weight.equal(net.weight)
    assert other_optimizer.param_groups[0]["betas"] == (0.5, 0.9)


def test_other_readers_find_the_tensors_under_their_place(tmp_path):
    net = nn.Linear(3, 2)
    save_tree(tmp_path / "t", {"net": net.state_dict(), "states": [{"mean": torch.ones(2)}]})
    assert set(load_file(tmp_path / "t")) == {"net.weight", "net.bias", "states.0.mean"}


def test_loaded_tensors_do_not_hang_on_the_file(tmp_path):
    path = tmp_path / "t"
    back = there_and_back(path, torch.ones(1000))
    with path.open("rb+") as file:
        file.write(b"\x07" * path.stat().st_size)
    assert back.equal(torch.ones(1000))


def test_a_device_may_be_named(tmp_path):
    save_tree(tmp_path / "t", {"a": torch.ones(2), "b": torch.ones(1, 2, 3, 4).to(memory_format=torch.channels_last)})
    back = load_tree(tmp_path / "t", device="meta")
    assert back["a"].is_meta
    assert back["b"].is_meta
    assert back["b"].is_contiguous(memory_format=torch.channels_last)


class Stringy(str):
    pass


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (len, "builtin_function_or_method"),
        (nn.ReLU(), "torch.nn.modules.activation.ReLU"),
        (np.zeros(2), "numpy.ndarray"),
        (np.float64(1), "numpy.float64"),
        (torch.Size([1]), "torch.Size"),
        (Stringy("a"), "test_files.Stringy"),
        ({1, 2}, "set"),
        (b"", "bytes"),
        (1j, "complex"),
    ],
)
def test_what_no_tree_has_is_named_with_its_place(tmp_path, bad, kind):
    with pytest.raises(TypeError) as caught:
        save_tree(tmp_path / "t", {"guard": {"states": [bad]}})
    assert f"tree['guard']['states'][0] is of type {kind}, which no file can hold" in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("key", [True, None, 1.5, (1,), np.int64(3)])
def test_other_keys_are_refused(tmp_path, key):
    with pytest.raises(TypeError, match=r"tree\['a'\]\[2\] has the key .* keys are strings or ints"):
        save_tree(tmp_path / "t", {"a": {2: {key: 1}}})


@pytest.mark.parametrize(
    "bad",
    [torch.zeros(2, device="meta"), torch.eye(2).to_sparse(), torch.zeros(2, dtype=torch.complex128)],
    ids=["meta", "sparse", "complex128"],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path, bad):
    with pytest.raises(TypeError, match=r"tree\['x'\] is a .* which a safetensors file cannot hold"):
        save_tree(tmp_path / "t", {"x": bad})


def nested(depth):
    tree = 1
    for _ in range(depth):
        tree = [tree]
    return tree


def test_depth_has_a_limit_on_both_sides(tmp_path):
    assert there_and_back(tmp_path / "t", nested(MAX_DEPTH)) == nested(MAX_DEPTH)
    loop = {}
    loop["again"] = loop
    for tree in (nested(MAX_DEPTH + 1), loop):
        with pytest.raises(ValueError, match="deeper than 100 levels at tree.*: does it contain itself"):
            save_tree(tmp_path / "t", tree)


def test_a_header_beyond_what_safetensors_reads_is_refused(tmp_path, monkeypatch):
    from safetensors import SafetensorError

    def too_large(*args, **kwargs):
        raise SafetensorError("Error while serializing: header too large")

    monkeypatch.setattr("afec.files.save_file", too_large)
    with pytest.raises(ValueError, match="put long lists of numbers into tensors"):
        save_tree(tmp_path / "t", 1)
    assert not list(tmp_path.iterdir())


# Bad bytes.

TREE = {"guard": {"states": [(1, 2.5, math.nan), {3: torch.arange(6.0).reshape(2, 3)}]}, "x": torch.ones(2, 3, 2, 2)}
TREE["x"] = TREE["x"].to(memory_format=torch.channels_last)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "t"
    save_tree(path, TREE)
    return path.read_bytes()


def load_bytes(directory, content):
    path = directory.getbasetemp() / "bad.safetensors"
    path.write_bytes(content)
    try:
        return load_tree(path)
    except FileError as error:
        if not str(error).startswith(f"{path}: ") or "; " not in str(error):
            pytest.fail(f"the message lacks the file, the fault or the advice: {error}")
        raise


def test_every_truncation_is_a_file_error(tmp_path_factory, good):
    for length in range(0, len(good), 3):
        with pytest.raises(FileError):
            load_bytes(tmp_path_factory, good[:length])
    with pytest.raises(FileError):
        load_bytes(tmp_path_factory, good + b"\x00")


def test_every_flipped_byte_is_a_file_error_or_changes_nothing(tmp_path_factory, good):
    """Of the header and of the data: a checkpoint with one wrong weight does not load."""
    unchanged = 0
    for position in range(len(good)):
        content = bytearray(good)
        content[position] ^= 1 << position % 8
        try:
            assert same(TREE, load_bytes(tmp_path_factory, bytes(content)))
            unchanged += 1
        except FileError:
            pass
    assert unchanged < 10  # e.g. a blank of the padding that became a tab


@given(data=st.data())
def test_several_wrong_bytes_are_a_file_error_or_change_nothing(tmp_path_factory, good, data):
    content = bytearray(good)
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FileError):
        assert same(TREE, load_bytes(tmp_path_factory, bytes(content)))


@given(content=st.binary(max_size=300), size=st.integers(0, 200))
def test_random_bytes_are_a_file_error(tmp_path_factory, content, size):
    for bad in (content, struct.pack("<Q", size) + content):
        with pytest.raises(FileError):
            load_bytes(tmp_path_factory, bad)


def forged(directory, structure, tensors=None, **metadata):
    """A file with a right checksum around any structure: what an attacker could make."""
    from afec.files import _checksum

    tensors = tensors or {}
    text = structure if isinstance(structure, str) else json.dumps(structure)
    known = {"afec.format": "1", "afec.tree": text, "afec.checksum": _checksum(text, tensors)}
    path = directory / "forged"
    save_file(tensors, path, metadata={**known, **metadata})
    return path


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["dict", "list", "tuple", "int", "float", "tensor", "channels_last"]), inner, max_size=2
        )
    ),
)


@given(structure=json_values)
def test_any_structure_is_a_tree_or_a_file_error(tmp_path_factory, structure):
    path = forged(tmp_path_factory.getbasetemp(), structure)
    with contextlib.suppress(FileError):
        save_tree(path, load_tree(path))


@pytest.mark.parametrize(
    ("structure", "message"),
    [
        ("{", "its structure is not JSON"),
        ("NaN", "NaN is no JSON number"),
        ("[" * 100_000, "its structure is not JSON"),
        ('{"list":[' * 150 + "1" + "]}" * 150, "nested deeper than 100 levels"),
        ('{"int":"zz"}', "its structure has the number 'zz'"),
        ('{"float":"00"}', "its structure has the number '00'"),
        ([1], "its structure has [1], which is nothing that a tree has"),
        ({"list": 1}, "which is nothing that a tree has"),
        ({"tensor": "gone"}, "which is nothing that a tree has"),
        ({"dict": [[1]]}, "where a key and a value belong"),
        ({"dict": [[None, 1]]}, "keys are strings or ints"),
        ({"dict": [[{"tensor": "t"}, 1]]}, "which is nothing that a tree has"),
        (None, "does not say where the tensor 't' belongs"),
        ({"list": [{"tensor": "t"}, {"tensor": "t"}]}, "which is nothing that a tree has"),
        ({"tensor": "t", "channels_last": True}, "calls a tensor of 1 dimensions channels-last"),
    ],
)
def test_a_malformed_structure_says_what_is_wrong(tmp_path, structure, message):
    with pytest.raises(FileError) as caught:
        load_tree(forged(tmp_path, structure, {"t": torch.ones(2)}))
    assert message in str(caught.value)


def test_missing_foreign_newer_and_odd_files_each_say_so(tmp_path):
    with pytest.raises(FileError, match="nowhere: there is no such file; check the path"):
        load_tree(tmp_path / "nowhere")
    with pytest.raises(FileError, match="it cannot be read"):
        load_tree(tmp_path)
    save_file({"x": torch.ones(2)}, tmp_path / "foreign")
    with pytest.raises(
        FileError, match="foreign: it is a safetensors file, but not a tree that afec wrote; give a file"
    ):
        load_tree(tmp_path / "foreign")
    with pytest.raises(FileError, match="it has the format '2', and this afec reads 1 only"):
        load_tree(forged(tmp_path, 1, **{"afec.format": "2"}))
    torch.save({"x": 1}, tmp_path / "pickle")
    with pytest.raises(FileError, match="damaged or no safetensors file"):
        load_tree(tmp_path / "pickle")


def test_a_file_error_survives_the_way_home_from_a_worker(tmp_path):
    with pytest.raises(FileError) as caught:
        load_tree(tmp_path / "nowhere")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_saving_changes_nothing_of_the_callers(tmp_path):
    tree = {"w": nn.Parameter(torch.ones(2, 2)), "l": [1, (2,)]}
    before = copy.deepcopy(tree)
    random_state = torch.get_rng_state()
    save_tree(tmp_path / "t", tree)
    assert tree["w"].requires_grad
    assert tree["w"].equal(before["w"])
    assert tree["l"] == before["l"]
    assert torch.get_rng_state().equal(random_state)
    assert not load_tree(tmp_path / "t")["w"].requires_grad
