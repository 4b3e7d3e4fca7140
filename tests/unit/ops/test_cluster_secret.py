"""The cluster's secret: made private, read only where it is private, one key per purpose [A10]."""

import os
import pickle

import pytest

from millrace.errors import ConfigError
from millrace.ops import cluster_secret
from millrace.ops.cluster_secret import HTTP, KAFKA, LINK, SPARK, ClusterSecret


def test_A10_a_new_secret_is_private_and_stays(tmp_path):
    path = str(tmp_path / "secret")
    before = os.umask(0)
    try:
        cluster_secret.create(path)
    finally:
        os.umask(before)
    assert os.stat(path).st_mode & 0o777 == 0o600
    first = cluster_secret.load(path).token(HTTP)
    cluster_secret.create(path)
    assert cluster_secret.load(path).token(HTTP) == first


def test_A10_each_purpose_has_a_key_of_its_own(tmp_path):
    one, other = ClusterSecret("a" * 64), ClusterSecret("b" * 64)
    keys = {secret.key(purpose) for secret in (one, other) for purpose in (HTTP, LINK, KAFKA, SPARK)}
    assert len(keys) == 8
    assert ClusterSecret("a" * 64).key(LINK) == one.key(LINK)


@pytest.mark.parametrize(("mode", "text", "said"), [
    (0o644, "a" * 64, "chmod 600"), (0o620, "a" * 64, "chmod 600"), (0o600, "short", "too few"),
    (0o600, "", "too few"), (0o600, None, "no such file")])
def test_A10_a_file_that_protects_nothing_is_refused(tmp_path, mode, text, said):
    path = tmp_path / "secret"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(ConfigError, match=said) as refused:
        cluster_secret.load(str(path))
    assert "cluster.secret_file" in str(refused.value)


def test_A10_a_secret_shows_itself_nowhere():
    secret = ClusterSecret("hidden" * 8)
    assert "hidden" not in f"{secret} {secret!r}"
    with pytest.raises(TypeError):
        pickle.dumps(secret)
