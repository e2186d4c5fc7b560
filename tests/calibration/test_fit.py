"""Fits: figures that explain samples exactly are found, disturbed samples don't matter."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from autopar.calibration import Calibration, Fit, LinkSample, fit_link
from autopar.cost import Cluster, CommunicationModel, LinkLevel
from autopar.ir.mesh import ProcessMesh

SIZES = [2**exponent for exponent in range(8, 24, 2)]


def samples(
    kind: str, alpha: float, beta: float, members: tuple[int, ...] = (2, 8)
) -> list[LinkSample]:
    """Seconds as the model has them."""
    found = []
    for count in members:
        link = LinkLevel("link", count, alpha, beta)
        cluster = Cluster("c", "", 1, 1e9, (("f32", 1.0),), (link,))
        model = CommunicationModel(cluster, ProcessMesh.of_shape((count,), ("x",)))
        seconds = getattr(model, kind)
        found += [LinkSample(kind, count, size, seconds(size, ["x"])) for size in SIZES]
    return found


@pytest.mark.parametrize(
    "kind",
    ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "point_to_point"],
)
def test_what_the_model_makes_is_found_again(kind: str) -> None:
    _, fits = fit_link(samples(kind, 3e-4, 2e-9))
    fit = fits[kind]
    assert fit.alpha_seconds == pytest.approx(3e-4, rel=0.02)
    assert fit.beta_seconds_per_byte == pytest.approx(2e-9, rel=0.02)
    assert fit.typical_error < 0.01
    assert fit.samples == 16


def test_collectives_are_fitted_one_by_one_and_together() -> None:
    together, fits = fit_link(
        [*samples("all_gather", 1e-4, 1e-9), *samples("all_reduce", 3e-4, 3e-9)]
    )
    assert fits["all_gather"].alpha_seconds == pytest.approx(1e-4, rel=0.02)
    assert fits["all_reduce"].alpha_seconds == pytest.approx(3e-4, rel=0.02)
    assert 1e-4 <= together.alpha_seconds <= 3e-4


def test_a_few_disturbed_samples_change_little() -> None:
    drawn = random.Random(0)
    found = samples("all_gather", 3e-4, 2e-9, (2, 4, 8))
    for at in drawn.sample(range(len(found)), 4):
        found[at] = replace(found[at], seconds=found[at].seconds * 20)
    _, fits = fit_link(found)
    assert fits["all_gather"].alpha_seconds == pytest.approx(3e-4, rel=0.05)
    assert fits["all_gather"].beta_seconds_per_byte == pytest.approx(2e-9, rel=0.05)


def test_figures_are_never_negative() -> None:
    falling = [LinkSample("broadcast", 2, size, 1e-3 / (at + 1)) for at, size in enumerate(SIZES)]
    together, _ = fit_link(falling)
    assert together.alpha_seconds > 0
    assert together.beta_seconds_per_byte > 0


@pytest.mark.parametrize(("seed", "alpha"), [(788, 3e-5), (36, 3e-4)])
def test_where_everything_is_disturbed_figures_are_still_those_of_links(
    seed: int, alpha: float
) -> None:
    """Each sample is up to ten times too long or too short: the best fit has a figure of 0."""
    drawn = random.Random(seed)
    found = [
        replace(each, seconds=each.seconds * 10 ** drawn.uniform(-1, 1))
        for each in samples("all_gather", alpha, 2e-9, (2, 4))
    ]
    _, fits = fit_link(found)
    fit = fits["all_gather"]
    assert alpha / 10 < fit.alpha_seconds < alpha * 10
    assert 2e-10 < fit.beta_seconds_per_byte < 2e-8
    assert fit.typical_error > 0.5


def test_a_bad_fit_is_told_in_the_file_and_on_the_terminal(tmp_path: Path) -> None:
    good, bad = Fit(1e-4, 1e-9, 0.05, 12), Fit(1e-4, 1e-9, 0.41, 12)
    cluster = Cluster.load("cpu")
    fine = Calibration(cluster, {"host": {"all_gather": good, "all_reduce": good}}, 4)
    doubtful = replace(fine, fits={"host": {"all_gather": good, "all_reduce": bad}})
    assert "Warning" not in f"{fine}{fine.text()}"
    for text in (str(doubtful), doubtful.text()):
        flat = " ".join(text.replace("#", "").split())
        assert (
            "Warning: 1 of 2 fits are typically more than 25% off what was measured, up to 41%"
            in flat
        )
        assert "end other programs" in flat
        assert "calibrate again" in flat
    path = tmp_path / "cluster.yaml"
    path.write_text(doubtful.text())
    assert Cluster.load(str(path)) == cluster
