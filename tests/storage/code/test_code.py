from __future__ import annotations

import io
import os
import subprocess
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import SettingsError, UnavailableError, UnknownError
from holdfast.storage.code import archive, versions
from holdfast.storage.code.code_files import list_files
from holdfast.storage.objects import ObjectStore


def write(root: Path, **files: str) -> Path:
    for name, content in files.items():
        path = root / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def tree(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): p.read_text() for p in sorted(root.rglob("*")) if p.is_file()}


def test_the_same_content_has_the_same_bytes(tmp_path: Path) -> None:
    """Wherever it lies, whenever it was written."""
    one = write(tmp_path / "one", train_py="x", lib__a_py="y")
    two = write(tmp_path / "two", lib__a_py="y", train_py="x")
    os.utime(two / "train.py", (1, 1))
    assert versions.pack(one) == versions.pack(two)
    assert len(versions.pack(one).version) == 12


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "train.py").write_text("z"),
        lambda root: (root / "train.py").rename(root / "other.py"),
        lambda root: (root / "train.py").chmod(0o755),
        lambda root: (root / "link").symlink_to("train.py"),
        lambda root: (root / "empty").write_text(""),
    ],
)
def test_every_change_is_another_version(tmp_path: Path, change: Callable[[Path], object]) -> None:
    """Content, name, mode and links."""
    root = write(tmp_path / "code", train_py="x")
    before = versions.pack(root).version
    change(root)
    assert versions.pack(root).version != before


def test_checkouts_equal_what_was_stored(objects: ObjectStore, tmp_path: Path) -> None:
    """With modes and links; storing again sends nothing new."""
    root = write(tmp_path / "code", train_py="print()", lib__a_py="y")
    (root / "run.sh").write_text("#!/bin/sh")
    (root / "run.sh").chmod(0o700)
    (root / "lib" / "link.py").symlink_to("../train.py")
    (root / "folder").symlink_to("lib")
    version = versions.store(objects, "gpt", root)
    sent = objects.head(versions.key("gpt", version))
    assert versions.store(objects, "gpt", root) == version
    assert objects.head(f"gpt/code/{version}.tar.gz") == sent
    dest = versions.checkout(objects, "gpt", version, tmp_path / "m0" / version)
    assert tree(dest) == tree(root)
    assert os.readlink(dest / "lib" / "link.py") == "../train.py"
    assert os.access(dest / "run.sh", os.X_OK)
    assert not os.access(dest / "train.py", os.X_OK) or os.stat(dest / "train.py").st_mode & 0o111 == 0
    assert versions.pack(dest).version == version
    assert versions.packed(dest).read_bytes() == objects.get(versions.key("gpt", version))
    assert {path.name for path in (tmp_path / "m0").iterdir()} == {version, f"{version}.tar.gz"}


def test_git_says_what_is_code(git_repository: Path) -> None:
    """Tracked and new files, without ignored and deleted ones, and never our own state."""
    root = write(git_repository, train_py="x", old_py="x", data__big="x", new_py="x")
    write(root, **{"/.gitignore".strip("/"): "data/\n", ".holdfast/secret": "s"})
    subprocess.run(["git", "-C", root, "add", "train.py", "old.py", ".gitignore"], check=True)
    (root / "old.py").unlink()
    assert list_files(root) == [".gitignore", "new.py", "old.py", "train.py"]
    ignored = versions.pack(root).version
    write(root, data__more="y")
    assert versions.pack(root).version == ignored


def test_a_folder_of_a_repository_is_packed_alone(git_repository: Path) -> None:
    """With names as seen from it."""
    root = write(git_repository, a_py="x", sub__b_py="x")
    assert list_files(root / "sub") == ["b.py"]


def test_a_folder_that_git_ignores_is_packed_whole(git_repository: Path) -> None:
    """Such as a copy made to change it."""
    root = write(git_repository, copy__train_py="x")
    (root / ".gitignore").write_text("copy/\n")
    assert list_files(root / "copy") == ["train.py"]


def test_a_repository_within_is_packed_too(git_repository: Path) -> None:
    """Git lists it as one entry."""
    root = write(git_repository, a_py="x", inner__b_py="x")
    subprocess.run(["git", "init", "-q", root / "inner"], check=True)
    subprocess.run(["git", "-C", str(root / "inner"), "add", "."], check=True)
    commit = [
        "git",
        "-C",
        str(root / "inner"),
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@t",
        "commit",
        "-qm",
        "x",
    ]
    subprocess.run(commit, check=True)
    assert list_files(root) == ["a.py", "inner/b.py"]


def test_git_variables_of_a_hook_do_not_mislead(
    git_repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They name the hook's repository."""
    root = write(git_repository, a_py="x")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert list_files(root) == ["a.py"]


def test_without_git_all_but_caches_is_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where git is not installed."""
    root = write(tmp_path / "code", train_py="x", lib__a_py="x", lib____pycache____a="x")
    write(root, **{".venv/bin/python": "x", ".holdfast/secret": "x", "lib/__pycache__/a.pyc": "x"})
    (root / "lib" / "linked").symlink_to("../lib")
    expected = ["lib/a.py", "lib/linked", "train.py"]
    assert [name for name in list_files(root) if "____" not in name and "pycache" not in name] == expected
    monkeypatch.setenv("PATH", "")
    assert "train.py" in list_files(root)


def test_wrong_directories_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with what to do."""
    with pytest.raises(SettingsError, match="does not exist or is no directory: check `code`"):
        versions.pack(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SettingsError, match="has no files"):
        versions.pack(tmp_path / "empty")
    root = write(tmp_path / "code", train_py="x")
    (root / "link").symlink_to("../../etc/passwd")
    with pytest.raises(SettingsError, match=r"link link leads out of it \(to \.\./\.\./etc/passwd\)"):
        versions.pack(root)
    (root / "link").unlink()
    monkeypatch.setattr(archive, "MAX_BYTES", 3 << 20)
    (root / "model.bin").write_bytes(b"x" * (4 << 20))
    with pytest.raises(SettingsError, match=r"holds 4 MiB, at most 3 MiB.*model\.bin \(4 MiB\).*\.gitignore"):
        versions.pack(root)


def test_an_existing_checkout_is_kept(objects: ObjectStore, tmp_path: Path) -> None:
    """Nothing is fetched for it while it is whole, S3 need not answer; what a script wrote there stays."""
    version, archive_ = versions.pack(write(tmp_path / "code", train_py="here"))
    dest = tmp_path / "dest" / version
    versions.place(archive_, version, dest)
    (dest / "output.txt").write_text("of a run")
    assert versions.checkout(objects, "gpt", version, dest) == dest
    assert tree(dest) == {"train.py": "here", "output.txt": "of a run"}


HARM: dict[str, Callable[[Path], object]] = {
    "emptied": lambda dest: (dest / "train.py").write_bytes(b""),
    "same size": lambda dest: (dest / "train.py").write_text("print('B')"),
    "gone": lambda dest: (dest / "lib" / "a.py").unlink(),
    "a link": lambda dest: ((dest / "train.py").unlink(), (dest / "train.py").symlink_to("lib/a.py")),
    "not to run": lambda dest: (dest / "run.sh").chmod(0o644),
    "other link": lambda dest: ((dest / "link").unlink(), (dest / "link").symlink_to("lib/a.py")),
    "archive emptied": lambda dest: versions.packed(dest).write_bytes(b""),
    "archive gone": lambda dest: versions.packed(dest).unlink(),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_broken_checkout_is_seen_and_made_again(objects: ObjectStore, tmp_path: Path, harm: str) -> None:
    """Whatever a power cut or a hand did to it."""
    root = write(tmp_path / "code", train_py="print('A')", lib__a_py="y")
    (root / "run.sh").write_text("#!/bin/sh")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("train.py")
    version = versions.store(objects, "gpt", root)
    dest = versions.checkout(objects, "gpt", version, tmp_path / "m0" / version)
    assert versions.look(version, dest).broken == ""
    HARM[harm](dest)
    assert versions.look(version, dest).broken
    assert versions.repair(version, dest) == (not harm.startswith("archive"))
    versions.checkout(objects, "gpt", version, dest)
    assert versions.look(version, dest).broken == ""
    assert versions.pack(dest).version == version
    assert {path.name for path in dest.parent.iterdir()} == {version, f"{version}.tar.gz"}


def test_all_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file, each folder and the archive; then the folder that the names are in."""
    done: list[str] = []
    sync, rename = os.fsync, os.rename

    def synced(descriptor: int) -> None:
        done.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    def renamed(source: str | Path, target: str | Path) -> None:
        done.append(f"-> {os.path.basename(target)}")
        rename(source, target)

    version, content = versions.pack(write(tmp_path / "code", train_py="x", lib__a_py="y"))
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    versions.place(content, version, tmp_path / "m0" / version)
    named = done.index(f"-> {version}")
    assert {"train.py", "a.py", "lib"} <= set(done[:named])
    assert sum(name.startswith(f".{version}.") for name in done[:named]) == 2  # the folder, and the archive
    assert done[named + 1 :] == ["m0"]


def test_power_lost_before_the_disk_had_the_files_leaves_no_checkout(tmp_path: Path) -> None:
    """A disk that fails a sync: nothing appears."""
    version, content = versions.pack(write(tmp_path / "code", train_py="x"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", _fails)
        with pytest.raises(UnavailableError, match="cannot write code version"):
            versions.place(content, version, tmp_path / "m0" / version)
    assert not (tmp_path / "m0" / version).exists()


def _fails(_descriptor: int) -> None:
    raise OSError(5, "Input/output error")


def hostile(*members: tuple[str, str, bytes], **fields: Any) -> tuple[str, bytes]:
    """An archive that we would not pack, under the version that its content has: its maker knows how to count."""
    entries = [archive._Entry(name, kind, content) for name, kind, content in members]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        for entry in entries:
            member = tarfile.TarInfo(entry.name)
            if entry.kind == "l":
                member.type, member.linkname = tarfile.SYMTYPE, os.fsdecode(entry.content)
            for field, value in fields.items():
                setattr(member, field, value)
            member.size = 0 if entry.kind == "l" else len(entry.content)
            tar.addfile(member, io.BytesIO(entry.content) if member.size else None)
    return archive._version(sorted(entries)), buffer.getvalue()


@pytest.mark.parametrize(
    "members",
    [
        [("../evil", "f", b"x")],
        [("/tmp/evil", "f", b"x")],
        [("a/../../evil", "f", b"x")],
        [("a/./b", "f", b"x")],
        [("link", "l", b"/etc/passwd")],
        [("link", "l", b"../outside")],
        [("dir", "l", b"."), ("dir/evil", "f", b"x")],
        # Each stays inside; one through the other leaves.
        [("a/b/up", "l", b"../.."), ("out", "l", b"a/b/up/../evil")],
        # The second writes through the first.
        [("a", "l", b"b"), ("a", "x", b"x")],
        [("", "f", b"x")],
    ],
    ids=str,
)
def test_an_archive_that_leads_out_is_refused(tmp_path: Path, members: list[tuple[str, str, bytes]]) -> None:
    """Although its name is that of its content; nothing is written anywhere."""
    version, content = hostile(*members)
    (tmp_path / "m0").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UnknownError, match="damaged"):
        versions.place(content, version, tmp_path / "m0" / version)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE]
)
def test_devices_pipes_and_hard_links_are_refused(tmp_path: Path, kind: bytes) -> None:
    """Only plain files and symbolic links are packed."""
    version, content = hostile(("train.py", "f", b""), type=kind, linkname="/etc/passwd")
    with pytest.raises(UnknownError, match="not packed by Holdfast"):
        versions.place(content, version, tmp_path / version)


@pytest.mark.parametrize("where", ["content", "header"])
def test_an_archive_that_unpacks_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Where its content is long, and where a header is: that is read by tarfile itself."""
    monkeypatch.setattr(archive, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(archive, "_OVERHEAD_BYTES", 1 << 16)
    long = "x" * (8 << 20)
    if where == "content":
        version, content = hostile(("train.py", "f", long.encode()))
    else:
        version, content = hostile(("train.py", "f", b""), pax_headers={"comment": long})
    assert len(content) < 1 << 16
    with pytest.raises(UnknownError, match="damaged"):
        versions.place(content, version, tmp_path / version)


@pytest.mark.parametrize("version", ["../../etc", "v1", "0" * 12])
def test_an_unknown_version_leaves_nothing(objects: ObjectStore, tmp_path: Path, version: str) -> None:
    """Nor is a name taken for a path."""
    with pytest.raises(UnknownError):
        versions.checkout(objects, "gpt", version, tmp_path / "dest" / "v")
    assert not (tmp_path / "dest").exists()


def test_a_damaged_archive_leaves_nothing(objects: ObjectStore, tmp_path: Path) -> None:
    """Cut short, of other content, or no archive at all."""
    version, content = versions.pack(write(tmp_path / "code", train_py="x" * 5000))
    other = versions.pack(write(tmp_path / "other", train_py="y")).content
    for wrong in (content[:-20], other, b"no archive", b"", content[:30] + b"\xff\xff" + content[32:]):
        objects.put(versions.key("gpt", version), wrong)
        with pytest.raises(UnknownError, match=f"code version {version} is damaged"):
            versions.checkout(objects, "gpt", version, tmp_path / "dest" / version)
    assert list((tmp_path / "dest").iterdir()) == []


def test_checkouts_at_once_do_not_disturb_one_another(objects: ObjectStore, tmp_path: Path) -> None:
    """All see one complete directory."""
    root = write(tmp_path / "code", **{f"f{n}_py": "x" * 100 for n in range(50)})
    version = versions.store(objects, "gpt", root)
    dest, seen = tmp_path / "dest" / version, list[int]()

    def check() -> None:
        seen.append(len(tree(versions.checkout(objects, "gpt", version, dest))))

    threads = [threading.Thread(target=check) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [50] * 8
    assert set(dest.parent.iterdir()) == {dest, versions.packed(dest)}


@pytest.mark.parametrize("damage", [lambda whole: whole[:-20], lambda whole: bytes(len(whole))])
def test_code_that_is_submitted_again_replaces_a_damaged_archive(
    objects: ObjectStore, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    """As the message about a damaged one asks for."""
    root = write(tmp_path / "code", train_py="x" * 5000)
    where = versions.key("gpt", versions.store(objects, "gpt", root))
    whole = objects.get(where)
    objects.put(where, damage(whole))
    version = versions.store(objects, "gpt", root)
    assert objects.get(where) == whole
    assert tree(versions.checkout(objects, "gpt", version, tmp_path / "dest" / version)) == tree(root)


def test_a_folder_that_cannot_be_written_is_named(objects: ObjectStore, tmp_path: Path) -> None:
    """As unavailable, not as a traceback."""
    version = versions.store(objects, "gpt", write(tmp_path / "code", train_py="x"))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UnavailableError, match=f"cannot write code version {version} to"):
        versions.checkout(objects, "gpt", version, tmp_path / "file" / version)


def test_one_file_of_a_version(objects: ObjectStore, tmp_path: Path) -> None:
    """As it was stored; links are no files of their own."""
    root = write(tmp_path / "code", lib__a_py="one\n")
    (root / "b.py").symlink_to("lib/a.py")
    version = versions.store(objects, "gpt", root)
    assert versions.text(objects, "gpt", version, "lib/a.py") == "one\n"
    assert versions.text(objects, "gpt", version, "b.py") is None
    assert versions.text(objects, "gpt", version, "c.py") is None
    with pytest.raises(UnknownError):
        versions.text(objects, "gpt", "0" * 12, "lib/a.py")
