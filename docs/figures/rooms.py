"""The picture of the rooms in docs/architecture.md, drawn from the imports: `python docs/figures/rooms.py`.

A room is a folder or a file of `src/afec`. Each stands above all rooms that it imports. A line leads to those that it does
not reach through another one.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "afec"
PICTURE = ROOT / "docs" / "rooms.svg"
WIDTH, ROW, BOX, HIGH = 880, 74, (112, 34), 24
Edges = dict[str, set[str]]


def imports() -> Edges:
    """Which rooms each room imports, inside functions and for types too."""
    found: Edges = {}
    for path in sorted(SOURCE.rglob("*.py")):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if not room.startswith("_"):
            found.setdefault(room, set()).update(imported(ast.parse(path.read_text(encoding="utf-8"))))
    return {room: {other for other in others if other in found and other != room} for room, others in found.items()}


def imported(tree: ast.Module) -> set[str]:
    """The rooms that one file imports."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "afec":
            names += [f"afec.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("afec.")}


def reachable(edges: Edges, room: str) -> set[str]:
    """All rooms below this one."""
    return edges[room] | {far for near in edges[room] for far in reachable(edges, near)}


def reduced(edges: Edges) -> Edges:
    """Without the imports that another one implies."""
    return {
        room: {near for near in others if not any(near in reachable(edges, other) for other in others - {near})}
        for room, others in edges.items()
    }


def rows(edges: Edges) -> list[list[str]]:
    """The rooms from the bottom up: each one just below the lowest room that imports it, so that lines are short."""
    users = {room: {other for other, used in edges.items() if room in used} for room in edges}
    depth: dict[str, int] = {}

    def of(room: str) -> int:
        if room not in depth:
            depth[room] = 1 + max((of(user) for user in users[room]), default=-1)
        return depth[room]

    for room in edges:
        of(room)
    for room in edges:  # what nobody imports stands just above what it imports
        if not users[room] and edges[room]:
            depth[room] = min(depth[other] for other in edges[room]) - 1
    first, last = min(depth.values()), max(depth.values())
    return [sorted(room for room in edges if depth[room] == level) for level in range(last, first - 1, -1)]


def svg(edges: Edges) -> str:
    """The picture."""
    levels = rows(edges)
    tall = ROW * len(levels) + HIGH
    at = {
        room: (WIDTH * (place + 1) / (len(level) + 1), tall - ROW * (number + 0.5) - HIGH / 2)
        for number, level in enumerate(levels)
        for place, room in enumerate(level)
    }
    wide, high = BOX
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {tall}" font-family="sans-serif" font-size="14">',
        "<title>The rooms of afec: each imports only rooms below it</title>",
        f'<rect width="{WIDTH}" height="{tall}" fill="white"/>',
    ]
    for room, others in sorted(reduced(edges).items()):
        for other in sorted(others):
            (x1, y1), (x2, y2) = at[room], at[other]
            y1, y2 = y1 + high / 2, y2 - high / 2
            bend = (y2 - y1) / 2
            parts.append(
                f'<path d="M {x1:.0f} {y1:.0f} C {x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} {y2:.0f}" '
                f'fill="none" stroke="#999"><title>{room} imports {other}</title></path>'
            )
    for room, (x, y) in sorted(at.items()):
        parts.append(
            f'<rect x="{x - wide / 2:.0f}" y="{y - high / 2:.0f}" width="{wide}" height="{high}" rx="6" '
            f'fill="#eef4fa" stroke="#0072b2"/><text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle">{room}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(svg(imports()), encoding="utf-8")
