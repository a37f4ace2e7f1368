"""The shared secret: from where it comes, who may read its file, and how it is replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import SecretStr

from holdfast import secret, settings
from holdfast.deployments.worker.environment import client_environment, server_environment
from holdfast.errors import SettingsError
from holdfast.secret import Keys


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    """As Kubernetes does: another file in the place of the former one."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    new.chmod(mode)
    os.replace(new, path)
    return path


def test_the_first_is_sent_and_all_are_accepted(tmp_path: Path) -> None:
    """Empty lines do not count."""
    keys = Keys(write(tmp_path / "secret", "new\n\n old \n"))
    assert keys.header == "Bearer new"
    assert [keys.match(f"Bearer {each}") for each in ("new", "old", "", "new old")] == [
        True,
        True,
        False,
        False,
    ]
    assert not keys.match(None)
    assert not keys.match("Basic new")


def test_a_secret_is_replaced_step_by_step_without_a_restart(tmp_path: Path) -> None:
    """Two machines that read the file at different moments understand each other in every order of steps."""
    stages = ("old", "old\nnew", "new\nold", "new")
    ours, theirs = write(tmp_path / "a", stages[0]), write(tmp_path / "b", stages[0])
    one, other = Keys(ours), Keys(theirs)
    for stage in stages[1:]:
        for path in (ours, theirs):
            write(path, stage)
            assert one.match(other.header)
            assert other.match(one.header)
    assert one.current == "new"
    assert not one.match("Bearer old")


@pytest.mark.parametrize("broken", ["", "open", "gone"])
def test_a_file_that_breaks_leaves_the_secret_of_before(
    tmp_path: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Half a rotation stops no service; the log reports it, without the secret."""
    path = write(tmp_path / "secret", "hunter2")
    keys = Keys(path)
    if broken == "gone":
        path.unlink()
    else:
        write(path, "" if not broken else "hunter3", 0o600 if not broken else 0o644)
    assert keys.current == "hunter2"
    assert "Going on with the secret of before" in caplog.text
    assert "hunter" not in caplog.text
    write(path, "hunter4")
    assert keys.current == "hunter4"


@pytest.mark.parametrize(
    ("mode", "ours", "taken"),
    [
        (0o600, True, True),
        (0o400, True, True),
        (0o640, True, False),
        (0o604, True, False),
        (0o440, False, True),  # a mounted Kubernetes secret with fsGroup
        (0o460, False, False),
        (0o444, False, False),
    ],
)
def test_who_may_read_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, ours: bool, taken: bool
) -> None:
    """Only the owner, and the group of a file that is another user's."""
    path = write(tmp_path / "secret", "s")
    path.chmod(mode)
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner if ours else owner + 1)
    if taken:
        assert secret.read(path) == "s"
    else:
        with pytest.raises(SettingsError, match="open to others"):
            secret.read(path)


def test_it_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then no file is needed."""
    monkeypatch.setenv("HOLDFAST_SHARED_SECRET", "from-env")
    chosen = settings.load(tmp_path)
    assert secret.of(chosen).current == "from-env"
    assert "from-env" not in repr(chosen)


def test_settings_come_from_a_mounted_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file per setting, as a Kubernetes secret is mounted; the environment wins."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    (mounted / "holdfast_database_url").write_text("postgresql+psycopg://me:hunter2@db/x\n")
    (mounted / "holdfast_s3_secret_key").write_text("hunter3\n")
    monkeypatch.setenv("HOLDFAST_SECRETS_DIR", str(mounted))
    chosen = settings.load(tmp_path)
    assert chosen.database == "postgresql+psycopg://me:hunter2@db/x"
    assert chosen.s3_secret_key.get_secret_value() == "hunter3"
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", "sqlite://")
    assert settings.load(tmp_path).database == "sqlite://"
    monkeypatch.setenv("HOLDFAST_SECRETS_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(SettingsError, match=r"HOLDFAST_SECRETS_DIR = .*nowhere: no such folder"):
        settings.load(tmp_path)


def test_the_prefect_server_gets_a_password_of_its_own_once(tmp_path: Path) -> None:
    """Made by `up` for its owner alone, and kept from then on."""
    chosen = settings.Settings(home=tmp_path)
    secret.create_prefect_auth(chosen)
    path = tmp_path / "prefect-auth"
    made = secret.prefect_auth(chosen)
    assert path.stat().st_mode & 0o777 == 0o600
    assert made == path.read_text()
    assert made.startswith("holdfast:")
    assert len(made) > 40
    secret.create_prefect_auth(chosen)
    assert secret.prefect_auth(chosen) == made


def test_a_prefect_password_that_was_given_is_the_one(tmp_path: Path) -> None:
    """As a setting or as a file; of an API elsewhere that asks for none there is none, and none of ours is sent."""
    secret.create_prefect_auth(settings.Settings(home=tmp_path))
    given = settings.Settings(home=tmp_path, prefect_auth=SecretStr("ada:xyz"))
    secret.create_prefect_auth(given)
    assert secret.prefect_auth(given) == "ada:xyz"
    elsewhere = settings.Settings(home=tmp_path, prefect_api_url="https://prefect.example/api")
    assert secret.prefect_auth(elsewhere) == ""
    file = write(tmp_path / "theirs", "bob:uvw")
    named = elsewhere.model_copy(update={"prefect_auth_file": file})
    assert secret.prefect_auth(named) == "bob:uvw"


def test_a_prefect_password_that_is_none_is_refused(tmp_path: Path) -> None:
    """The server never runs open for want of one."""
    chosen = settings.Settings(home=tmp_path)
    with pytest.raises(SettingsError, match="`holdfast up` creates it"):
        server_environment(chosen)
    for wrong in ("", "holdfast", "holdfast:", ":secret"):
        write(tmp_path / "prefect-auth", wrong)
        with pytest.raises(SettingsError, match="prefect-auth"):
            server_environment(chosen)
    write(tmp_path / "prefect-auth", "a:b", mode=0o644)
    with pytest.raises(SettingsError, match="open to others"):
        server_environment(chosen)


def test_all_of_the_site_get_the_prefect_password_by_their_environment(tmp_path: Path) -> None:
    """Server, gateway, worker and playbooks."""
    chosen = settings.Settings(home=tmp_path)
    secret.create_prefect_auth(chosen)
    password = secret.prefect_auth(chosen)
    assert server_environment(chosen)["PREFECT_SERVER_API_AUTH_STRING"] == password
    assert client_environment(chosen)["PREFECT_API_AUTH_STRING"] == password


def test_the_prefect_ui_may_have_another_address_for_browsers(tmp_path: Path) -> None:
    """Its own requests and its links go there; what processes call stays."""
    chosen = settings.Settings(home=tmp_path, prefect_ui_url="https://prefect.example/")
    secret.create_prefect_auth(chosen)
    served = server_environment(chosen)
    assert served["PREFECT_UI_API_URL"] == "https://prefect.example/api"
    assert served["PREFECT_UI_URL"] == "https://prefect.example"
    assert served["PREFECT_API_URL"] == chosen.prefect_api == "http://127.0.0.1:4301/api"
    plain = settings.Settings(home=tmp_path)
    assert server_environment(plain)["PREFECT_UI_API_URL"] == plain.prefect_api
    assert plain.prefect_ui == "http://127.0.0.1:4301"


def test_the_status_page_may_have_another_address_for_browsers(tmp_path: Path) -> None:
    """Links for people go there; agents and commands call the gateway as before."""
    chosen = settings.Settings(home=tmp_path, page_url="https://holdfast.example/")
    assert (chosen.page, chosen.gateway) == ("https://holdfast.example/ui/", "http://127.0.0.1:4300")
    assert settings.Settings(home=tmp_path).page == "http://127.0.0.1:4300/ui/"
    with pytest.raises(ValueError, match="page_url"):
        settings.Settings(home=tmp_path, page_url="holdfast.example")


def test_the_prefect_server_writes_nowhere_but_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an image its package belongs to root, or is read-only; its UI's files go beside its database then."""
    chosen = settings.Settings(home=tmp_path)
    secret.create_prefect_auth(chosen)
    name = "PREFECT_UI_STATIC_DIRECTORY"
    monkeypatch.setattr(os, "access", lambda *_: True)
    assert name not in server_environment(chosen)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert server_environment(chosen)[name] == str(tmp_path / "prefect" / "ui")
