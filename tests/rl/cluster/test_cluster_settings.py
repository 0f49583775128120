"""``cluster=NAME``: what is refused, in one line, before anything starts."""

import pytest

from rl.cluster.opening import open_cluster
from rl.cluster.settings import ClusterChoice, RayConfig
from rl.errors import UsageError
from rl.train import main


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank_cpus": 0}, r"^rank_cpus \(0\) must be above 0$"),
        ({"server_cpus": -1}, r"^server_cpus \(-1\) must be above 0$"),
        ({"start_s": 0}, r"^start_s \(0\) must be above 0$"),
        ({"strategy": "pack"}, r"^strategy \(pack\) must be PACK or SPREAD$"),
    ],
)
def test_values_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        RayConfig(**options)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("cluster=rey", "unknown cluster 'rey'. Did you mean 'ray'?"),
        ("cluster.address=auto", "unknown key 'cluster.address'"),
    ],
)
def test_a_wrong_choice_is_one_line(word, message, tmp_path, capfd):
    assert main([word, f"out={tmp_path / 'run'}", "env=math"]) == 1
    [line] = capfd.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "run").exists()


async def test_without_ray_the_fix_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"^cluster=ray needs Ray: pip install 'turnwise\[ray\]'$"):
        async with open_cluster(ClusterChoice("ray", RayConfig()), [0], []):
            pass
