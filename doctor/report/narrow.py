"""Tables whose figures stay whole in a narrow terminal: words wrap, whole columns are left out, and it is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

#: Characters that a column of words is narrowed to; longer words are broken.
_WORDS = 12


@dataclass(frozen=True)
class Column:
    """``words``: its cells may be broken over lines; those of the others are figures and stay whole.

    ``rank``: columns of rank 1 are left out first when there is no room, then 2 and so on; 0 always stays.
    ``low``: left out even before cells of words are broken.
    """

    name: str
    words: bool = False
    right: bool = False
    rank: int = 0
    low: bool = False


def print_columns(
    out: Console, columns: Sequence[Column], rows: Sequence[Sequence[str | Text]], style: str
) -> None:
    """Prints the table, and a line that names the columns left out. ``style`` is that of the head."""
    least, whole, most = zip(*(_widths(c, [row[n] for row in rows]) for n, c in enumerate(columns)), strict=True)
    gap = 2 if sum(whole) + 2 * len(columns) <= out.width else 1
    kept = list(range(len(columns)))
    left_out = []
    for number in sorted((n for n in kept if columns[n].rank), key=lambda n: columns[n].rank):
        wanted = whole if columns[number].low else least
        if sum(wanted[n] + gap for n in kept) <= out.width:
            continue
        kept.remove(number)
        left_out.append(number)
    if sum(whole[n] + gap for n in kept) <= out.width:
        least = whole
    widths = _shared({n: (least[n], most[n]) for n in kept}, out.width - gap * len(kept))
    # a width of its own and no cropping: where even this is too wide, the terminal breaks the lines
    table = Table(
        box=None, padding=(0, gap, 0, 0), header_style=style, width=sum(widths.values()) + gap * len(kept)
    )
    for n in kept:
        table.add_column(
            columns[n].name, width=widths[n], justify="right" if columns[n].right else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(row[n] for n in kept))
    out.print(table, crop=False)
    if left_out:
        names = ", ".join(columns[n].name for n in sorted(left_out))
        out.print(Text(f"left out, the terminal is too narrow: {names}; --json has them", style="dim"))


def _widths(column: Column, cells: Sequence[str | Text]) -> tuple[int, int, int]:
    """Widths of a column: the least, that which breaks no cell, and that with the head in one line as well."""
    texts = [cell.plain if isinstance(cell, Text) else cell for cell in cells]
    head = max(map(cell_len, column.name.split()), default=0)
    whole = max(head, max((cell_len(t) for t in texts), default=0))
    longest = max((cell_len(w) for t in texts for w in t.split()), default=0)
    least = max(head, min(longest, _WORDS)) if column.words else whole
    return least, whole, max(whole, cell_len(column.name))


def _shared(limits: dict[int, tuple[int, int]], room: int) -> dict[int, int]:
    """The whole widths, the widest ones narrowed as far as the room needs and their least allows."""
    widths = {n: most for n, (_, most) in limits.items()}
    while sum(widths.values()) > room:
        wide = [n for n in widths if widths[n] > limits[n][0]]
        if not wide:
            break
        widths[max(wide, key=lambda n: widths[n])] -= 1
    return widths
