"""A store of another package: what every store must do, and a checkpoint that is saved there and restored."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import plugins
from holdfast.errors import SettingsError, UnavailableError, UnknownError
from holdfast.settings import Settings
from holdfast.storage import objects
from holdfast.storage.checkpoints.remote import export, manifests
from holdfast.testing.store_conformance import StoreConformance
from tests.agent.shards import write_shard
from tests.plugins import acme_store
from tests.plugins.acme_store import FolderStore

KEY = manifests.checkpoint_key("toy", 20, 2)


class TestFolderStore(StoreConformance):
    """The five operations that it has, and all that :class:`BasicStore` makes of them."""

    @pytest.fixture
    def store(self, tmp_path_factory: pytest.TempPathFactory) -> FolderStore:
        made = FolderStore(tmp_path_factory.mktemp("bucket"))
        made.ensure_bucket()
        return made

    @pytest.fixture
    def nowhere(self, tmp_path_factory: pytest.TempPathFactory) -> FolderStore:
        return FolderStore(tmp_path_factory.mktemp("lustre") / "nobody-made-me")


@pytest.mark.parametrize("after", [b"v2, which is longer", b"v2", b""])
def test_an_object_that_is_replaced_while_it_is_read_comes_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bytes
) -> None:
    """Between its size and its bytes: the first bytes of a longer one are no object, and a shorter one is there."""
    store = FolderStore(tmp_path)
    store.put("key", b"version 1")
    read = store.read

    def replaced(key: str, start: int, nbytes: int) -> bytes:
        monkeypatch.setattr(store, "read", read)
        store.put(key, after)
        return read(key, start, nbytes)

    monkeypatch.setattr(store, "read", replaced)
    assert store.get("key") == after


def test_an_object_that_is_replaced_without_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for a version of it is bounded; one that is not there is no wait at all."""
    store, puts = FolderStore(tmp_path), 0
    store.put("key", b"")
    read = store.read

    def replaced(key: str, start: int, nbytes: int) -> bytes:
        nonlocal puts
        puts += 1
        store.put(key, b"x" * (puts + 1))
        return read(key, start, nbytes)

    store.put("key", b"x")
    monkeypatch.setattr(store, "read", replaced)
    with pytest.raises(UnavailableError, match="again and again"):
        store.get("key")
    with pytest.raises(UnknownError, match="no object 'other'"):
        store.get("other")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the installed package, on the path of this process and of those that it starts."""
    folder = tmp_path / "site"
    record = folder / "acme_store-1.2.dist-info"
    record.mkdir(parents=True)
    (folder / "acme_store.py").write_text(Path(acme_store.__file__).read_text())
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-store\nVersion: 1.2\n")
    (record / "entry_points.txt").write_text(
        "[holdfast.stores]\nacme = acme_store:FolderStore\nbroken = acme_store:nothing\nhalf = acme_store:Path\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    yield folder
    sys.modules.pop("acme_store", None)


SAVE = """
import sys
from pathlib import Path
from holdfast import settings
from holdfast.agent.checkpoints import transfer_main
from holdfast.storage import objects

store = objects.from_settings(settings.load(Path(sys.argv[1])))
for rank, path in enumerate(sys.argv[3:]):
    transfer_main.put_part(store, path, sys.argv[2], object_nbytes=1 << 20, within_s=60.0)
transfer_main.finish(
    store, key=sys.argv[2], job="toy", step=20, epoch=2, world_size=2, metadata=b"meta", wait_s=5.0
)
"""


def test_a_checkpoint_is_saved_there_and_restored_from_there(site: Path, tmp_path: Path) -> None:
    """The scheme of the URL finds the package, in a process of its own as in the one that restores."""
    home, bucket = tmp_path / ".holdfast", tmp_path / "lustre"
    home.mkdir()
    bucket.mkdir()
    (home / "settings.env").write_text(f"HOLDFAST_STORE=acme://{bucket}\n")
    paths = [
        str(write_shard(tmp_path, rank, 20, 2, payload=b"rank %d and more" % rank, owned=6))
        for rank in (0, 1)
    ]
    subprocess.run([sys.executable, "-c", SAVE, str(home), KEY, *paths], check=True, timeout=100)

    given = objects.arguments(Settings(home=home, store=f"acme://{bucket}"))
    assert given == {"scheme": "acme", "folder": str(bucket)}, "what the agent hands to ranks"
    store = objects.connect(given)
    assert [(each.job, each.step) for each in manifests.list_remote(store, "toy")] == [("toy", 20)]
    export.to_directory(store, KEY, tmp_path / "back")
    assert (tmp_path / "back" / "__1_0.distcp").read_bytes() == b"rank 1"
    assert (bucket / KEY / "manifest.json").is_file()


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("nothing://x", r"no holdfast.stores 'nothing': expected one of s3, acme, broken, half"),
        ("broken://x", r"'broken' of package acme-store 1.2 is broken: AttributeError"),
        ("half://x", r"'half' of package acme-store 1.2 is broken: TypeError: .* has no arguments, connect"),
        ("acme://x", r"acme://x: expected acme:///FOLDER"),
    ],
)
@pytest.mark.usefixtures("site")
def test_a_store_that_cannot_be_used_is_refused(url: str, named: str) -> None:
    """Before anything is saved, by name."""
    with pytest.raises(SettingsError, match=named):
        objects.from_settings(Settings(store=url))


@pytest.mark.usefixtures("site")
def test_what_is_broken_is_listed() -> None:
    """By `holdfast plugins` and `holdfast doctor`."""
    loaded, broken = plugins.load(plugins.EntryPoints.STORES)
    assert list(loaded) == ["acme"]
    assert {plugin.name for plugin in broken} == {"broken", "half"}


@pytest.mark.parametrize("url", ["acme", "acme://", "s3://", "s3://bucket/folder"])
def test_a_url_that_names_no_place_is_refused(url: str) -> None:
    """With what was expected."""
    with pytest.raises(ValueError, match="expected"):
        Settings(store=url)


def test_without_a_url_it_is_the_bucket_in_s3(tmp_path: Path) -> None:
    """And with one of S3, the bucket there."""
    here = Settings(home=tmp_path, s3_bucket="ours")
    assert (here.store_url, here.bucket, here.embedded_s3) == ("s3://ours", "ours", True)
    there = Settings(home=tmp_path, store="s3://theirs", s3_bucket="ours", s3_secret_key="k")  # type: ignore[arg-type]
    assert objects.arguments(there)["bucket"] == there.bucket == "theirs"
    elsewhere = Settings(home=tmp_path, store="acme://place")
    assert (elsewhere.stored_in_s3, elsewhere.embedded_s3) == (False, False)
