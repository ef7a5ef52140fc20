"""Where the boxes of a data-flow graph go: layers from top to bottom, few crossings, straight lines where possible.

The usual layered drawing in four steps: depth, waypoints for long edges, order within a layer, coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

GAP, LAYER_GAP, MARGIN, WAYPOINT = 12.0, 38.0, 8.0, 10.0
SWEEPS = 12


class Box(Protocol):
    """What is laid out: hashable, with a size and the boxes it reads (each with an edge label).

    A box that depends on an `anchored` box is as near the top as possible. The others, and the anchored boxes
    themselves, are just above their first reader.
    """

    width: float
    height: float
    anchored: bool
    inputs: list[tuple[Box, str]]


class _Waypoint:
    """A place where a long edge passes through a layer."""

    width, height = WAYPOINT, 0.0


@dataclass
class Layout:
    """`centre` of each box, and `edges` as (points from producer to consumer, label); the origin is top left."""

    width: float
    height: float
    centre: dict[object, tuple[float, float]]
    edges: list[tuple[list[tuple[float, float]], str]]


def lay_out(nodes: Sequence[Box]) -> Layout:
    """Lay out a graph without cycles. nodes: producers come before their consumers."""
    depth = _assign_layers(nodes)
    layers: list[list] = [[] for _ in range(max(depth.values(), default=0) + 1)]
    for node in nodes:
        layers[depth[node]].append(node)
    chains = _route_edges(nodes, depth, layers)
    above: dict = {}
    below: dict = {}
    for chain, _ in chains:
        for upper, lower in pairwise(chain):
            below.setdefault(upper, []).append(lower)
            above.setdefault(lower, []).append(upper)
    _order_layers(layers, above, below)
    x = _place_columns(layers, above, below)
    y, height = _place_rows(layers)
    left = min((x[n] - n.width / 2 for n in x), default=0.0)
    right = max((x[n] + n.width / 2 for n in x), default=0.0)
    centre = {n: (x[n] - left + MARGIN, y[n]) for n in x}
    edges = [(_trace_edge(chain, centre, above, below), label) for chain, label in chains]
    return Layout(right - left + 2 * MARGIN, height, centre, edges)


def _assign_layers(nodes: Sequence[Box]) -> dict[Box, int]:
    """The layer of each box: the length of the longest path from a source, or just above its first reader (see Box)."""
    depth: dict[Box, int] = {}
    fixed: dict[Box, bool] = {}
    readers: dict[Box, list[Box]] = {}
    for node in nodes:
        depth[node] = max((depth[source] + 1 for source, _ in node.inputs), default=0)
        fixed[node] = any(fixed[source] for source, _ in node.inputs) or node.anchored
        for source, _ in node.inputs:
            readers.setdefault(source, []).append(node)
    for node in reversed(nodes):
        if node in readers and not (fixed[node] and node.inputs):
            depth[node] = min(depth[reader] for reader in readers[node]) - 1
    return depth


def _route_edges(nodes: Sequence[Box], depth: dict, layers: list[list]) -> list[tuple[list, str]]:
    """Every edge as the boxes and waypoints that it passes, one per layer; parallel edges become one edge."""
    chains = []
    for node in nodes:
        labels: dict[Box, list[str]] = {}
        for source, label in node.inputs:
            labels.setdefault(source, []).append(label)
        for source, several in labels.items():
            chain: list = [source]
            for level in range(depth[source] + 1, depth[node]):
                chain.append(_Waypoint())
                layers[level].append(chain[-1])
            chains.append(([*chain, node], ", ".join(label for label in several if label)))
    return chains


def _order_layers(layers: list[list], above: dict, below: dict) -> None:
    """Sort each layer by the positions of its neighbours, downwards and upwards alternately."""
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        neighbours = above if down else below
        for index in range(1, len(layers)) if down else reversed(range(len(layers) - 1)):
            place = {node: i for i, node in enumerate(layers[index - 1 if down else index + 1])}
            own = {node: i for i, node in enumerate(layers[index])}
            layers[index].sort(key=lambda node: _mean(node, neighbours, place, own[node]))


def _mean(node, neighbours: dict, place: dict, otherwise: float) -> float:
    """The mean place of those `neighbours` of `node` that have a place; `otherwise` if none has."""
    near = [place[other] for other in neighbours.get(node, ()) if other in place]
    return sum(near) / len(near) if near else otherwise


def _place_columns(layers: list[list], above: dict, below: dict) -> dict:
    """The x of each box: pulled towards the mean of its neighbours, without letting boxes of a layer touch."""
    x: dict = {}
    for layer in layers:
        at = 0.0
        for node in layer:
            x[node] = at + node.width / 2
            at += node.width + GAP
        for node in layer:
            x[node] -= (at - GAP) / 2
    for sweep in range(SWEEPS * 2):
        neighbours = above if sweep % 2 == 0 else below
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wish = {node: _mean(node, neighbours, x, x[node]) for node in layer}
            _pack_layer(layer, wish, x)
    return x


def _pack_layer(layer: list, wish: dict, x: dict) -> None:
    """Set `x` of a layer to the mean of packing it from the left and from the right; order and gaps are kept."""
    from_left: dict = {}
    edge = float("-inf")
    for node in layer:
        from_left[node] = max(wish[node], edge + node.width / 2)
        edge = from_left[node] + node.width / 2 + GAP
    edge = float("inf")
    for node in reversed(layer):
        right = min(wish[node], edge - node.width / 2)
        edge = right - node.width / 2 - GAP
        x[node] = (from_left[node] + right) / 2


def _place_rows(layers: list[list]) -> tuple[dict, float]:
    """The y of each box, and the height of the picture."""
    y: dict = {}
    at = MARGIN
    for layer in layers:
        tall = max((node.height for node in layer), default=0.0)
        for node in layer:
            y[node] = at + tall / 2
        at += tall + LAYER_GAP
    return y, at - LAYER_GAP + MARGIN


def _trace_edge(chain: list, centre: dict, above: dict, below: dict) -> list[tuple[float, float]]:
    """The polyline of one edge: it leaves a box at the bottom and enters another at the top."""
    first, last = chain[0], chain[-1]
    start = (_place_port(first, chain[1], below, centre), centre[first][1] + first.height / 2)
    end = (_place_port(last, chain[-2], above, centre), centre[last][1] - last.height / 2 - 2)
    return [start, *(centre[w] for w in chain[1:-1]), end]


def _place_port(node, neighbour, neighbours: dict, centre: dict) -> float:
    """The x where an edge meets `node`: the edges of a box are side by side, in the order of their other ends."""
    near = sorted(set(neighbours[node]), key=lambda other: centre[other][0])
    step = min(24.0, (node.width - 24) / max(len(near), 1))
    return centre[node][0] + (near.index(neighbour) - (len(near) - 1) / 2) * step
