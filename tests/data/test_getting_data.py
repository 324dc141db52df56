"""Downloads are whole or not there, go on where they broke off, and archives unpack to where they belong only."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from local_server import serving

from afec.cli import main
from afec.data import DataError, load_cifar100
from afec.data import download as download_module
from afec.data.catalogue import DATASETS
from afec.data.download import download
from afec.data.store import check, get
from afec.data.unpack import unpack
from official_layouts import packed, write_cifar100, write_cub, write_image_folder, write_omniglot

CONTENT = np.random.default_rng(0).bytes(300_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(download_module, "PAUSE", 0.0)
    with serving() as server:
        server.files["file.bin"] = CONTENT
        yield server


def fetch(server, folder, **options):
    download(server.address + "file.bin", folder / "file.bin", MD5, **options)
    return (folder / "file.bin").read_bytes()


def left(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_arrives_whole_and_says_how_far_it_is(server, tmp_path):
    told = []
    assert fetch(server, tmp_path / "new", on_bytes=lambda *found: told.append(found)) == CONTENT
    assert left(tmp_path / "new") == ["file.bin"]
    assert told[-1] == (300_000, 300_000)
    assert [have for have, _ in told] == sorted(have for have, _ in told)


def test_what_is_there_is_not_fetched_again(server, tmp_path):
    fetch(server, tmp_path)
    fetch(server, tmp_path)
    assert len(server.asked) == 1


def test_it_goes_on_where_it_broke_off_by_itself(server, tmp_path):
    server.breaks = [100_000, 1, 50_000]
    assert fetch(server, tmp_path) == CONTENT
    assert server.asked == [None, "bytes=100000-", "bytes=100001-", "bytes=150001-"]


def test_it_goes_on_in_the_next_call(server, tmp_path):
    server.breaks = [120_000, 0, 0, 0, 0]
    with pytest.raises(DataError, match="broke off after 120,000 of 300,000 bytes") as caught:
        fetch(server, tmp_path)
    assert str(tmp_path / "file.bin") in str(caught.value)
    assert left(tmp_path) == ["file.bin.part"]
    server.breaks, server.asked = [], []
    assert fetch(server, tmp_path) == CONTENT
    assert server.asked == ["bytes=120000-"]
    assert left(tmp_path) == ["file.bin"]


def test_a_server_without_ranges_is_asked_for_all_of_it(server, tmp_path):
    server.ranges, server.breaks = False, [100_000]
    assert fetch(server, tmp_path) == CONTENT


@pytest.mark.parametrize("size", [1000, 300_000, 400_000])
def test_a_part_of_something_else_is_thrown_away(server, tmp_path, size):
    (tmp_path / "file.bin.part").write_bytes(bytes(size))
    assert fetch(server, tmp_path) == CONTENT
    assert server.asked == [f"bytes={size}-", None]


def test_a_part_that_was_whole_needs_only_its_name(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert fetch(server, tmp_path) == CONTENT
    assert server.asked == ["bytes=300000-"]


def test_the_wrong_file_is_not_kept(server, tmp_path):
    server.files["file.bin"] = CONTENT[:-1] + b"x"
    with pytest.raises(DataError, match=f"expected {MD5}"):
        fetch(server, tmp_path)
    assert left(tmp_path) == []


def test_a_damaged_file_is_replaced_only_by_a_whole_one(server, tmp_path):
    (tmp_path / "file.bin").write_bytes(b"damaged")
    server.files["file.bin"] = b"wrong"
    with pytest.raises(DataError):
        fetch(server, tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == b"damaged"
    server.files["file.bin"] = CONTENT
    assert fetch(server, tmp_path) == CONTENT


def test_a_server_that_is_busy_is_asked_again_and_one_that_refuses_is_not(server, tmp_path):
    server.errors = [503, 500]
    assert fetch(server, tmp_path) == CONTENT
    server.errors, server.asked = [403], []
    with pytest.raises(DataError, match="403"):
        download(server.address + "file.bin", tmp_path / "other.bin", MD5)
    assert len(server.asked) == 1
    assert left(tmp_path) == ["file.bin"]


def test_offline_says_what_to_fetch_and_where_to_put_it(tmp_path, monkeypatch):
    monkeypatch.setattr(download_module, "PAUSE", 0.0)
    with serving() as server:
        address = server.address + "file.bin"
    with pytest.raises(DataError) as caught:  # nobody answers there any more
        download(address, tmp_path / "file.bin", MD5)
    assert address in str(caught.value)
    assert f"put it here:\n  {tmp_path / 'file.bin'}" in str(caught.value)
    assert left(tmp_path) == []


def test_two_at_once_do_not_mix(server, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    with (tmp_path / "file.bin.part").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process is fetching"):
            fetch(server, tmp_path)
    assert fetch(server, tmp_path) == CONTENT


# Unpacking.


def tar(path, *entries):
    with tarfile.open(path, "w:gz") as archive:
        for entry in entries:
            info, content = entry if isinstance(entry, tuple) else (entry, None)
            if isinstance(info, str):
                info = tarfile.TarInfo(info)
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content) if content is not None else None)
    return path


def entry(name, kind, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def test_an_archive_unpacks_to_its_folder(tmp_path):
    executable = tarfile.TarInfo("set/a/run.sh")
    executable.size, executable.mode = 2, 0o4777
    archive = tar(tmp_path / "set.tar.gz", entry("./set", tarfile.DIRTYPE), ("./set/x", b"x"), (executable, b"ab"))
    assert unpack(archive, tmp_path / "root", "set") == tmp_path / "root" / "set"
    assert (tmp_path / "root" / "set" / "x").read_bytes() == b"x"
    assert (tmp_path / "root" / "set" / "a" / "run.sh").stat().st_mode & 0o7111 == 0
    assert left(tmp_path / "root") == ["set"]


@pytest.mark.parametrize(
    "bad",
    [
        ("../outside", b"x"),
        ("set/../../outside", b"x"),
        ("set/a/../../../outside", b"x"),
        ("/tmp/outside", b"x"),
        ("other/outside", b"x"),
        ("set\\..\\outside", b"x"),
        ("C:/outside", b"x"),
        entry("set/link", tarfile.SYMTYPE, "/etc/passwd"),
        entry("set/link", tarfile.SYMTYPE, "../../outside"),
        entry("set/link", tarfile.LNKTYPE, "set/x"),
        entry("set/pipe", tarfile.FIFOTYPE),
        entry("set/device", tarfile.CHRTYPE),
        ("set/x", b"again"),
    ],
    ids=lambda bad: (bad[0] if isinstance(bad, tuple) else f"{bad.name} {bad.type!r}").replace("/", "|"),
)
def test_what_does_not_belong_into_the_folder_refuses_the_archive(tmp_path, bad):
    archive = tar(tmp_path / "set.tar.gz", ("set/x", b"x"), bad)
    root = tmp_path / "deep" / "root"
    root.mkdir(parents=True)
    with pytest.raises(DataError, match="nothing was unpacked"):
        unpack(archive, root, "set")
    assert left(root) == []
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["deep", "root", "set.tar.gz"]


def test_a_link_cannot_lead_a_later_file_outside(tmp_path):
    archive = tar(
        tmp_path / "set.tar.gz", entry("set/a", tarfile.SYMTYPE, str(tmp_path)), ("set/a/outside", b"x")
    )  # fmt: skip
    with pytest.raises(DataError):
        unpack(archive, tmp_path / "root", "set")
    assert not (tmp_path / "outside").exists()


names = st.lists(st.sampled_from(["set", "..", ".", "a", "", "/", "b"]), min_size=1, max_size=5).map("/".join)


@given(name=names.filter(lambda name: name.strip("/.")))
def test_no_name_leaves_the_folder(tmp_path_factory, name):
    folder = tmp_path_factory.mktemp("unpack")
    archive = tar(folder / "set.tar.gz", ("set/first", b"x"), (name, b"x"))
    try:
        unpack(archive, folder / "root", "set")
    except DataError:
        assert not any((folder / "root").iterdir())
    else:
        files = [path for path in folder.rglob("*") if path.is_file() and path.name != "set.tar.gz"]
        assert len(files) == 2
        assert all(path.is_relative_to(folder / "root" / "set") for path in files)


def test_damaged_and_overlarge_archives_unpack_to_nothing(tmp_path, monkeypatch):
    archive = tar(tmp_path / "set.tar.gz", ("set/x", CONTENT))
    whole = archive.read_bytes()
    for content in (whole[: len(whole) // 2], b"no archive", b""):
        archive.write_bytes(content)
        with pytest.raises(DataError, match=r"damaged|has no folder"):
            unpack(archive, tmp_path / "root", "set")
    archive.write_bytes(whole)
    monkeypatch.setattr("afec.data.unpack.MOST_BYTES", 299_999)
    with pytest.raises(DataError, match="more than 299,999 bytes"):
        unpack(archive, tmp_path / "root", "set")
    assert left(tmp_path / "root") == []
    (tmp_path / "root" / "set").mkdir()
    with pytest.raises(DataError, match="in the way"):
        unpack(archive, tmp_path / "root", "set")


# A tiny CIFAR-100 and a tiny Omniglot on a server, under the names of the real ones.


@pytest.fixture
def shop(server, tmp_path, monkeypatch):
    source = tmp_path / "shop"
    write_cifar100(source, binary=False)
    sums = {file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in (source / "cifar-100-python").iterdir()}
    packed(source / "cifar-100-python", "cifar-100-python.tar.gz")
    write_omniglot(source, zipped=True, drawings=5)
    records = {}
    for name, expected in (
        ("cifar100", {"training images": 1000, "test images": 400}),
        ("omniglot", {"alphabets": 50, "characters": 125, "drawings": 625}),
    ):
        archives = []
        for archive in DATASETS[name].archives:
            file = archive.name.split("/")[-1]
            server.files[file] = (source / file).read_bytes()
            checksum = hashlib.md5(server.files[file]).hexdigest()
            files = sums if archive.files else {}
            archives.append(replace(archive, address=server.address + file, checksum=checksum, files=files))
        records[name] = replace(DATASETS[name], archives=tuple(archives), expected=expected)
        monkeypatch.setitem(DATASETS, name, records[name])
    shutil.rmtree(source)
    return records


def words(dataset, root):
    return [(finding.good, finding.words) for finding in check(dataset, root)]


def test_get_fetches_unpacks_and_is_done(shop, server, tmp_path):
    root = tmp_path / "data"
    server.breaks = [1000]
    assert get(shop["cifar100"], root)
    assert left(root) == ["cifar-100-python"]  # what was downloaded is not kept twice
    assert len(load_cifar100(root).train_labels) == 1000
    assert all(good for good, _ in words(shop["cifar100"], root))
    assert len(words(shop["cifar100"], root)) == 4
    asked = len(server.asked)
    assert not get(shop["cifar100"], root)
    assert len(server.asked) == asked


def test_zips_stay_as_they_are(shop, tmp_path):
    assert get(shop["omniglot"], tmp_path)
    assert left(tmp_path / "omniglot") == ["images_background.zip", "images_evaluation.zip"]
    assert words(shop["omniglot"], tmp_path)[-1] == (True, "can be read: 50 alphabets, 125 characters, 625 drawings")


def test_an_archive_that_was_put_there_by_hand_is_taken(shop, server, tmp_path):
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(server.files["cifar-100-python.tar.gz"])
    assert not get(shop["cifar100"], tmp_path)  # it can be read as it is
    assert get(shop["cifar100"], tmp_path, again=True)
    assert server.asked == []
    assert "cifar-100-python.tar.gz" in left(tmp_path)  # it is not ours to delete


def test_a_damaged_file_is_found_and_replaced_when_asked_for(shop, server, tmp_path):
    get(shop["cifar100"], tmp_path)
    file = tmp_path / "cifar-100-python" / "test"
    file.write_bytes(file.read_bytes()[:-10])
    found = words(shop["cifar100"], tmp_path)
    assert [good for good, _ in found].count(False) == 2  # the file, and the set as a whole
    assert any("damaged" in text for _, text in found)
    with pytest.raises(DataError, match="afec data get cifar100 --again"):
        get(shop["cifar100"], tmp_path)
    assert get(shop["cifar100"], tmp_path, again=True)
    assert all(good for good, _ in words(shop["cifar100"], tmp_path))
    assert left(tmp_path) == ["cifar-100-python"]


def test_what_is_there_stays_where_the_new_one_cannot_be_unpacked(shop, server, tmp_path):
    get(shop["cifar100"], tmp_path)
    before = left(tmp_path / "cifar-100-python")
    evil = tar(tmp_path / "evil.tar.gz", ("../x", b"x")).read_bytes()
    record = shop["cifar100"]
    server.files["cifar-100-python.tar.gz"] = evil
    archive = replace(record.archives[0], checksum=hashlib.md5(evil).hexdigest())
    with pytest.raises(DataError, match="nothing was unpacked"):
        get(replace(record, archives=(archive,)), tmp_path, again=True)
    assert left(tmp_path / "cifar-100-python") == before


def test_other_versions_count_as_there(shop, server, tmp_path):
    write_cifar100(tmp_path, binary=True)
    assert not get(shop["cifar100"], tmp_path)
    assert server.asked == []


# The commands.


def test_the_commands(shop, tmp_path, capsys):
    root = str(tmp_path / "root")
    assert main(["data", "list", "--data", root]) == 0
    shown = capsys.readouterr().out
    for name, record in DATASETS.items():
        assert name in shown
        assert all(archive.address in shown and archive.checksum in shown for archive in record.archives)
    assert shown.count("not here") == len(DATASETS)
    assert main(["data", "check", "cifar100", "--data", root]) == 1
    assert "afec data get cifar100" in capsys.readouterr().out
    assert main(["data", "get", "cifar100", "omniglot", "--data", root]) == 0
    assert f"cifar100 is now in {root}" in capsys.readouterr().out
    assert main(["data", "get", "cifar100", "--data", root]) == 0
    assert "cifar100 was already in" in capsys.readouterr().out
    assert main(["data", "check", "--data", root]) == 0  # cifar10 is not there, and was not asked for by name
    shown = capsys.readouterr().out
    assert "cifar10: not here" in shown
    assert "WRONG" not in shown
    assert main(["data", "get", "cifar"]) == 2
    assert "did you mean 'cifar10'" in capsys.readouterr().err


def test_an_address_that_does_not_answer_is_said_with_exit_code_2(shop, server, tmp_path, capsys):
    server.files.clear()
    assert main(["data", "get", "omniglot", "--data", str(tmp_path)]) == 2
    assert str(tmp_path / "omniglot" / "images_background.zip") in capsys.readouterr().err


def test_the_catalogue_is_complete():
    for record in DATASETS.values():
        assert record.archives or (record.by_hand and record.folder)
        for archive in (*record.archives, *(other for other in record.others if other.address)):
            assert len(archive.checksum) in (32, 64)
            assert archive.address.startswith("https://")
            assert archive.address.endswith(archive.name.split("/")[-1])
    python = DATASETS["cifar10"].archives[0].files
    assert sorted(python) == ["batches.meta", *(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]


# Birds, a folder that nobody can fetch, and weights.


def sold(server, tmp_path, monkeypatch, name, content, kind, **changes):
    """One file of a dataset on the server."""
    record = DATASETS[name]
    archive = record.archives[0]
    server.files[archive.name] = content
    found = hashlib.new(kind, content).hexdigest()
    record = replace(
        record, archives=(replace(archive, address=server.address + archive.name, checksum=found),), **changes
    )
    monkeypatch.setitem(DATASETS, name, record)
    return record


def test_birds_come_with_a_file_beside_their_folder(server, tmp_path, monkeypatch):
    folder = write_cub(tmp_path / "shop", per_class=2)
    (tmp_path / "shop" / "attributes.txt").write_text("1 has_bill_shape::curved")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        archive.add(tmp_path / "shop" / "attributes.txt", "attributes.txt")
        archive.add(folder, folder.name)
    expected = {"classes": 200, "images": 400, "training images": 200}
    record = sold(server, tmp_path, monkeypatch, "cub200", out.getvalue(), "md5", expected=expected)
    root = tmp_path / "data"
    assert get(record, root)
    assert left(root) == ["CUB_200_2011"]
    whole = (True, "can be read: 200 classes, 400 images, 200 training images")
    assert words(record, root) == [whole, (True, "each of the 400 images can be decoded")]
    assert not get(record, root)
    next((root / "CUB_200_2011" / "images").rglob("*.png")).unlink()
    (good, said) = words(record, root)[-1]
    assert not good
    assert "is missing (1 such in all); get it anew: `afec data get cub200 --again`" in said
    assert get(record, root, again=True)
    assert words(record, root)[-1][0]


def test_no_other_file_may_be_beside_the_folder(tmp_path):
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        for name in ("set/a.txt", "notes.txt", "other.txt"):
            entry = tarfile.TarInfo(name)
            archive.addfile(entry, io.BytesIO())
    with pytest.raises(DataError, match="'other.txt' is not inside of set/"):
        unpack(tmp_path / "set.tar", tmp_path / "root", "set", ("notes.txt",))


def test_weights_are_checked_by_their_sha256(server, tmp_path, monkeypatch):
    out = io.BytesIO()
    names = [*(f"features.{k}" for k in (0, 3, 6, 8, 10)), *(f"classifier.{k}" for k in (1, 4, 6))]
    torch.save({f"{name}.bias": torch.zeros(1) for name in names}, out)
    record = sold(server, tmp_path, monkeypatch, "alexnet", out.getvalue(), "sha256")
    assert [good for good, _ in words(record, tmp_path / "data")] == [False]
    assert get(record, tmp_path / "data")
    assert left(tmp_path / "data") == ["alexnet-owt-7be5be79.pth"]
    found = words(record, tmp_path / "data")
    assert found == [(True, "SHA-256 as it should be"), (True, "can be read: 5 convolutions, 2 hidden layers")]
    file = tmp_path / "data" / "alexnet-owt-7be5be79.pth"
    file.write_bytes(file.read_bytes()[:-1])
    assert not any(good for good, _ in words(record, tmp_path / "data"))
    assert get(record, tmp_path / "data", again=True)


def test_what_cannot_be_fetched_is_said_with_where_it_belongs(tmp_path, capsys):
    root = tmp_path / "data"
    assert main(["data", "get", "imagenet100", "--data", str(root)]) == 2
    said = capsys.readouterr().err
    assert "image-net.org" in said
    assert str(root / "imagenet100") in said
    write_image_folder(root / "imagenet100", [f"n{k:03d}" for k in range(100)], train=1, test=1)
    assert main(["data", "get", "imagenet100", "--data", str(root)]) == 0
    assert main(["data", "check", "imagenet100", "--data", str(root)]) == 0
    assert "100 classes, 100 training images, 100 test images" in capsys.readouterr().out
    shutil.rmtree(root / "imagenet100" / "val" / "n007")
    assert main(["data", "check", "imagenet100", "--data", str(root)]) == 1
    assert "n007 is in train only" in capsys.readouterr().out
