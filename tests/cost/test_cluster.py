"""Cluster descriptions: the built-in ones, and what is wrong with a user's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autopar.base.errors import InvalidInputError
from autopar.cost import Cluster, CommunicationModel, LinkLevel
from autopar.cost.cluster_text import cluster_text
from autopar.ir.mesh import ProcessMesh

GOOD = """
name: pair
device: two cards
memory_bytes: 16e9
memory_bytes_per_second: 1.0e+12
flops_per_second: {f32: 10e12, bf16: 80000000000000}
links:
  - {name: bus, size: 2, alpha_seconds: 1e-6, beta_seconds_per_byte: 1e-11}
"""


def load(tmp_path: Path, text: str) -> Cluster:
    path = tmp_path / "cluster.yaml"
    path.write_text(text, encoding="utf-8")
    return Cluster.load(path)


@pytest.mark.parametrize("name", Cluster.profiles())
def test_built_in_profiles_load(name: str) -> None:
    cluster = Cluster.load(name)
    assert cluster.name == name
    assert cluster.devices >= 4096
    assert cluster.flops("bf16") >= cluster.flops("f32") / 2
    inner = [level.beta_seconds_per_byte for level in cluster.links]
    assert inner == sorted(inner), "links get slower from the inside to the outside"


def test_a_file_is_read_as_written(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD) == Cluster(
        "pair",
        "two cards",
        16_000_000_000,
        1e12,
        (("bf16", 8e13), ("f32", 1e13)),
        (LinkLevel("bus", 2, 1e-6, 1e-11),),
    )


@pytest.mark.parametrize("name", Cluster.profiles())
def test_a_cluster_is_written_as_it_is_read(tmp_path: Path, name: str) -> None:
    cluster = replace(Cluster.load(name), name='a "b": c', launch_seconds=2e-6)
    assert load(tmp_path, cluster_text(cluster)) == cluster


def test_a_built_in_cluster_with_a_number_of_hosts() -> None:
    hosts = Cluster.load("h100x4")
    assert (hosts.name, hosts.devices) == ("h100x4", 32)
    assert hosts.links[0] == Cluster.load("h100").links[0]
    assert len(Cluster.load("h100x1").links) == 1
    with pytest.raises(InvalidInputError, match="no built-in cluster 'h10x4'; did you mean h100"):
        Cluster.load("h10x4")
    with pytest.raises(InvalidInputError, match="no built-in cluster"):
        Cluster.load("h" * 5000)
    with pytest.raises(InvalidInputError, match="has 0 levels of links around nvlink"):
        Cluster.load("h100x1").with_groups(2)


def test_a_built_in_cluster_with_hosts_and_racks() -> None:
    racks = Cluster.load("h100x8x4")
    assert (racks.name, racks.devices) == ("h100x8x4", 256)
    assert [(level.name, level.size) for level in racks.links] == [
        ("nvlink", 8),
        ("infiniband", 8),
        ("spine", 4),
    ]
    assert [level.name for level in Cluster.load("h100x1x4").links] == ["nvlink", "spine"]
    assert [level.size for level in Cluster.load("mi300xx4").links] == [8, 4]
    assert [level.size for level in Cluster.load("torusx4").links] == [16, 16, 4]
    with pytest.raises(InvalidInputError, match="3 sizes of them can't be given; its levels are"):
        Cluster.load("h100x2x2x2")


RACKS = """
name: racks
device: a card
memory_bytes: 16e9
memory_bytes_per_second: 1.0e+12
flops_per_second: {f32: 10e12}
links:
  - {name: bridge, size: 2, alpha_seconds: 1e-6, beta_seconds_per_byte: 1e-11}
  - {name: host, size: 4, alpha_seconds: 5e-6, beta_seconds_per_byte: 5e-11}
  - {name: switch, size: 16, alpha_seconds: 1e-5, beta_seconds_per_byte: 1e-10}
  - {name: rack, size: 8, alpha_seconds: 2e-5, beta_seconds_per_byte: 4e-10}
"""


def test_a_file_has_as_many_levels_as_the_hardware(tmp_path: Path) -> None:
    cluster = load(tmp_path, RACKS)
    assert cluster.devices == 2 * 4 * 16 * 8
    fewer = cluster.with_groups(4, 3, 2)
    assert fewer.devices == 2 * 4 * 3 * 2
    model = CommunicationModel(fewer, ProcessMesh.of_shape((6, 8), ("dp", "tp")))
    assert model.span(("tp",)) == (2, 4, 1, 1)
    assert model.span(("dp",)) == (1, 1, 3, 2)
    assert [way.level for way in model.algorithms("all_reduce", 1e6, ["dp", "tp"])] == [
        "bridge",
        "host",
        "switch",
        "rack",
    ]


def test_efficiency_is_part_of_what_is_reached(tmp_path: Path) -> None:
    text = GOOD + "compute_efficiency: 0.5\nmemory_efficiency: 0.25\n"
    cluster = load(tmp_path, text)
    assert (cluster.flops("f32"), cluster.bytes_per_second) == (5e12, 2.5e11)


def test_a_dtype_that_is_not_listed_runs_like_f32(tmp_path: Path) -> None:
    cluster = load(tmp_path, GOOD)
    assert (cluster.flops("bf16"), cluster.flops("i64")) == (8e13, 1e13)


def test_unknown_profile() -> None:
    with pytest.raises(InvalidInputError) as error:
        Cluster.load("h10")
    assert "no built-in cluster 'h10'; did you mean h100" in str(error.value)
    assert "a100, b200, cpu" in str(error.value)


def test_missing_file() -> None:
    with pytest.raises(InvalidInputError) as error:
        Cluster.load("nowhere/my.yaml")
    assert str(error.value) == (
        "can't read the cluster in nowhere/my.yaml: No such file or directory"
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("device:", "devise:", "unknown key 'devise' in the file; did you mean device"),
        ("memory_bytes: 16e9", "", "memory_bytes must be a number above 0, not None"),
        ("16e9", "plenty", "memory_bytes must be a number above 0, not 'plenty'"),
        ("1e-11", "-1", "links[0].beta_seconds_per_byte must be a number above 0, not -1"),
        ("1e-11", ".nan", "links[0].beta_seconds_per_byte must be a number above 0, not nan"),
        ("size: 2", "size: 9" + "9" * 19, "links[0].size must be at most 10000000, not 9999999999"),
        ("memory_bytes: 16e9", "memory_bytes: 1e300", "memory_bytes must be from 1e-30 to 1e+30"),
        ("1e-11", "1e-200", "links[0].beta_seconds_per_byte must be from 1e-30 to 1e+30, not 1e-"),
        ("size: 2", "size: 2.5", "links[0].size must be a whole number, not 2.5"),
        ("alpha_seconds", "alpha", "unknown key 'alpha' in links[0]; did you mean alpha_seconds?"),
        ("bf16", "bfloat16", "unknown key 'bfloat16' in flops_per_second; did you mean bf16"),
        ("f32: 10e12, ", "", "flops_per_second lacks f32"),
        ("name: pair", "name: [pair]", "name must be a text, not ['pair']"),
        (GOOD[GOOD.index("links:") :], "links: []", "links must be a list with at least one level"),
    ],
)
def test_problems_of_a_file(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        load(tmp_path, GOOD.replace(old, new, 1))
    assert message in str(error.value)
    assert "cluster.yaml" in str(error.value)


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError) as error:
        load(tmp_path, GOOD.replace("16e9", "none").replace("size: 2", "size: -2"))
    assert len(str(error.value).splitlines()) == 3


@pytest.mark.parametrize("text", ["{", "- 1", "", "a: \t- b"])
def test_what_is_no_mapping(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"cluster\.yaml"):
        load(tmp_path, text)


LINK = "host_link: {name: bus, alpha_seconds: 1e-5, beta_seconds_per_byte: 2e-11}\n"


def test_what_a_host_reaches_of_its_memory(tmp_path: Path) -> None:
    """What a file says; else what its link brings, or the device's own memory."""
    said = load(tmp_path, f"{GOOD}{LINK}host_memory_bytes_per_second: 6e10\n")
    assert said.host_seconds(6_000) == pytest.approx(1e-5 + 1e-7)
    assert load(tmp_path, cluster_text(said)) == said
    linked = load(tmp_path, GOOD + LINK)
    assert linked.host_memory_bytes_per_second is None
    assert linked.host_bytes_per_second == pytest.approx(5e10)
    alone = load(tmp_path, f"{GOOD}launch_seconds: 1e-6\n")
    assert alone.host_bytes_per_second == 1e12
    assert alone.host_seconds(1_000_000) == pytest.approx(2e-6)
    with pytest.raises(InvalidInputError, match="host_memory_bytes_per_second must be a number"):
        load(tmp_path, f"{GOOD}host_memory_bytes_per_second: fast\n")


def test_built_in_hosts_reach_less_than_their_devices() -> None:
    for name in Cluster.profiles():
        cluster = Cluster.load(name)
        linked = cluster.host_link is not None
        assert linked == (cluster.host_memory_bytes_per_second is not None)
        assert (cluster.host_bytes_per_second < cluster.bytes_per_second) == linked
