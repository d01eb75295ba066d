"""The fingerprint key, and references to records."""

from __future__ import annotations

import hashlib
import hmac
import threading

import pytest

from dpltm.data import load
from dpltm.errors import ArtifactError
from dpltm.tickets.identity import key_path, load_key, reference


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A configuration folder that does not exist yet."""
    monkeypatch.delenv("DPLTM_KEY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


def refused():
    with pytest.raises(ArtifactError) as caught:
        load_key()
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_made_once_for_the_owner_only(home):
    first = load_key()
    path = home / "dpltm/key"
    assert key_path() == path
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == first.hex() + "\n"
    assert len(first) == 32
    assert load_key() == first
    assert [entry.name for entry in path.parent.iterdir()] == ["key"]


@pytest.mark.usefixtures("home")
def test_different_each_time(tmp_path, monkeypatch):
    first = load_key()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
    assert load_key() != first


def test_home_configuration_folder(tmp_path, monkeypatch):
    for name in ("DPLTM_KEY", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert key_path() == tmp_path / ".config/dpltm/key"


def test_named_by_the_environment(home, tmp_path, monkeypatch):
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "my/key"))
    key = load_key()
    assert (tmp_path / "my/key").read_text() == key.hex() + "\n"
    assert (tmp_path / "my/key").stat().st_mode & 0o777 == 0o600
    assert not home.exists()
    (tmp_path / "my/key").write_text("AB" * 32)
    assert load_key() == bytes([0xAB]) * 32


@pytest.mark.parametrize("text", ["", "hello", "ab" * 31, "ab" * 33, "xy" * 32, "ü" * 64, "ab" * 32 + "\nmore"])
@pytest.mark.usefixtures("home")
def test_malformed(tmp_path, monkeypatch, text):
    path = tmp_path / "key"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setenv("DPLTM_KEY", str(path))
    assert refused() == f"{path}: not a fingerprint key (64 hexadecimal digits); restore it or point DPLTM_KEY at one"
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("place", "reason"),
    [("file/key", "File exists"), ("folder", "Is a directory"), ("file/deeper/key", "Not a directory")],
)
@pytest.mark.usefixtures("home")
def test_places_that_cannot_be_used(tmp_path, monkeypatch, place, reason):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    path = tmp_path / place
    monkeypatch.setenv("DPLTM_KEY", str(path))
    assert refused() == (
        f"{path}: the fingerprint key cannot be read or made ({reason}); point DPLTM_KEY at a file that can"
    )


@pytest.mark.usefixtures("home")
def test_reference():
    digits = load("digits", subset="0.5:1.0")
    first = reference(digits)
    key = load_key()
    assert first.fingerprint == hmac.new(key, digits.source_digest.encode(), hashlib.sha256).hexdigest()[:32]
    assert (first.name, first.start, first.stop) == ("digits", 719, 1438)
    assert len(first.key_id) == 8
    assert first.key_id not in key.hex()
    other = reference(load("digits", subset="0.5"))
    assert (other.fingerprint, other.key_id) == (first.fingerprint, first.key_id)
    assert not other.may_overlap(first)


@pytest.mark.usefixtures("home")
def test_references_under_two_keys_cannot_be_told_apart(tmp_path, monkeypatch):
    here = reference(load("digits", subset="0.5"))
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "key"))
    there = reference(load("digits", subset="0.5:1.0"))
    assert here.fingerprint != there.fingerprint
    assert here.key_id != there.key_id
    assert here.may_overlap(there)


@pytest.mark.usefixtures("home")
def test_two_first_uses_at_once(tmp_path, monkeypatch):
    for attempt in range(300):
        monkeypatch.setenv("DPLTM_KEY", str(tmp_path / str(attempt)))
        barrier, found = threading.Barrier(2), []

        def use(barrier=barrier, found=found):
            barrier.wait()
            try:
                found.append(load_key())
            except ArtifactError as error:
                found.append(str(error))

        threads = [threading.Thread(target=use) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found[0] == found[1]
        assert isinstance(found[0], bytes)
