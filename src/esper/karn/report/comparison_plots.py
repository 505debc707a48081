"""The plots of a comparison as plotly figures; the page adds the colours of its theme."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from esper.leyline.comparison import ArmSummary, ComparisonReport
from esper.leyline.learning import LearningCurve, LearningReport

__all__ = ["Plot", "colour_of", "comparison_plots", "learning_plots", "titled_curves"]

_Json: TypeAlias = Mapping[str, object]

_PALETTE: Final = (
    "#2f7fd1",
    "#8a919b",
    "#d9822b",
    "#2f9e6e",
    "#a366cc",
    "#d1495b",
    "#1f9fb0",
    "#9c7a1e",
)
"""Readable on light and dark backgrounds; an arm has the same colour in every plot."""
_BAND_ALPHA: Final = "26"
_RUN_ALPHA: Final = "80"
_SMALL_MARGIN: Final = {"t": 32, "r": 12, "l": 40, "b": 40}

_TITLES: Final[Mapping[str, str]] = {
    "mean_accuracy_pct": "validation accuracy, %",
    "mean_task_return": "task return per env",
    "mean_reward": "return with shaping per env",
    "num_fossilized": "seeds kept in a round",
    "num_pruned": "seeds pruned in a round",
    "kl_divergence": "KL of the update",
    "value_nrmse": "value error (NRMSE)",
    "explained_variance": "explained variance of returns",
    "entropy": "entropy of all heads",
}
"""Curves in display order."""
_UPDATE_FIGURES: Final = ("kl_divergence", "value_nrmse", "explained_variance", "entropy")


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """A plotly figure and the id of the element it is drawn into."""

    id: str
    data: list[_Json]
    layout: _Json


def colour_of(index: int) -> str:
    """Return the colour of an arm by its index in the report."""
    return _PALETTE[index % len(_PALETTE)]


def comparison_plots(report: ComparisonReport) -> list[Plot]:
    """Return plots of the arms' accuracy per step and against the parameters they added."""
    labels = report.labels()
    curves: list[_Json] = []
    points: list[_Json] = []
    for index, arm in enumerate(report.arms):
        label, colour = labels[arm.arm], colour_of(index)
        x = list(range(1, len(arm.curve_pct) + 1))
        curves += _band(x, arm.curve_low_pct, arm.curve_high_pct, colour, group=label)
        curves.append({**_line(x, arm.curve_pct, colour), "name": label, "legendgroup": label})
        points.append(_point(arm, label, colour))
    return [
        Plot(id="curves", data=curves, layout=_layout("step", "test accuracy, %")),
        Plot(
            id="front",
            data=[_front(report.arms), *points],
            layout=_layout("parameters added", "final test accuracy, %"),
        ),
    ]


def learning_plots(learning: LearningReport) -> list[Plot]:
    """Return one plot per curve: every run, their mean, and the range between them."""
    plots = [
        _learning_plot(_place_of(curve), curve, title, colour_of(0))
        for curve, title in titled_curves(learning)
    ]
    entropies = [
        _learning_plot(f"entropy-{curve.name}", curve, curve.name, colour_of(4))
        for curve in learning.entropies
    ]
    return [*plots, *map(_up_to_one, entropies)]


def _place_of(curve: LearningCurve) -> str:
    return f"{'update' if curve.name in _UPDATE_FIGURES else 'growth'}-{curve.name}"


def titled_curves(learning: LearningReport) -> list[tuple[LearningCurve, str]]:
    """Return the curves in display order, each with its title."""
    known = {curve.name: curve for curve in learning.curves}
    return [(known[name], title) for name, title in _TITLES.items() if name in known]


def _learning_plot(place: str, curve: LearningCurve, title: str, colour: str) -> Plot:
    x = list(range(1, len(curve.mean) + 1))
    runs: list[_Json] = [
        {**_line(x, run, colour + _RUN_ALPHA, width=1), "showlegend": False, "hoverinfo": "skip"}
        for run in curve.runs
    ]
    mean = {**_line(x, curve.mean, colour), "name": "mean", "showlegend": False}
    layout = {
        "title": {"text": title, "font": {"size": 13}, "y": 0.97},
        "xaxis": {"title": {"text": "round", "standoff": 8}},
        "yaxis": {},
        "margin": _SMALL_MARGIN,
        "hovermode": "x unified",
    }
    data = [*_band(x, curve.low, curve.high, colour, group="range"), *runs, mean]
    return Plot(id=place, data=data, layout=layout)


def _up_to_one(plot: Plot) -> Plot:
    return msgspec.structs.replace(plot, layout={**plot.layout, "yaxis": {"range": [0.0, 1.05]}})


def _line(x: Sequence[int], y: Iterable[float | None], colour: str, width: int = 2) -> _Json:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": list(y),
        "line": {"color": colour, "width": width},
        "hovertemplate": "%{y:.4g}",
    }


def _band(
    x: Sequence[int],
    low: Sequence[float | None],
    high: Sequence[float | None],
    colour: str,
    *,
    group: str,
) -> list[_Json]:
    """Return the area between two lines; steps without a measurement are left out."""
    places = [index for index, value in enumerate(low) if value is not None]
    edge = {
        "type": "scatter",
        "mode": "lines",
        "x": [x[index] for index in places],
        "line": {"width": 0},
        "legendgroup": group,
        "showlegend": False,
        "hoverinfo": "skip",
    }
    filled = {"fill": "tonexty", "fillcolor": colour + _BAND_ALPHA}
    return [
        {**edge, "y": [high[index] for index in places]},
        {**edge, "y": [low[index] for index in places], **filled},
    ]


def _point(arm: ArmSummary, label: str, colour: str) -> _Json:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label,
        "x": [arm.num_params_added],
        "y": [arm.final_pct.value],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [arm.final_pct.high - arm.final_pct.value],
            "arrayminus": [arm.final_pct.value - arm.final_pct.low],
        },
        "marker": {
            "color": colour,
            "size": 14 if arm.is_on_front else 10,
            "symbol": "star" if arm.is_on_front else "circle",
        },
    }


def _front(arms: Sequence[ArmSummary]) -> _Json:
    best = sorted(
        (arm for arm in arms if arm.is_on_front), key=lambda arm: (arm.num_params_added, arm.arm)
    )
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "Pareto front",
        "x": [arm.num_params_added for arm in best],
        "y": [arm.final_pct.value for arm in best],
        "line": {"color": "#8a919b", "width": 1, "dash": "dot", "shape": "hv"},
        "hoverinfo": "skip",
    }


def _layout(x_title: str, y_title: str) -> _Json:
    return {
        "xaxis": {"title": {"text": x_title, "standoff": 8}},
        "yaxis": {"title": {"text": y_title, "standoff": 8}},
        "margin": {"t": 10, "r": 10, "l": 50, "b": 50},
        # Above the plot, where it does not overlap the axis on narrow pages.
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        "hovermode": "x unified" if x_title != "parameters added" else "closest",
    }
