"""The colours of pictures, by name: light, dark, and as notebooks choose one."""

from collections.abc import Mapping

LIGHT: Mapping[str, str] = {
    "ground": "#ffffff",
    "ink": "#1f2328",
    "muted": "#59636e",
    "line": "#d1d9e0",
    "arrow": "#d97706",
    "parquet": "#2563eb",
    "both": "#7a6a9d",
    "hidden": "#8b949e",
    "reader": "#1a7f5a",
    "alarm": "#c0362c",
}
DARK: Mapping[str, str] = {
    "ground": "#0d1117",
    "ink": "#e6edf3",
    "muted": "#9ba5b0",
    "line": "#343b44",
    "arrow": "#f0a44b",
    "parquet": "#6ea8fe",
    "both": "#b3a5d3",
    "hidden": "#7d8590",
    "reader": "#4cc38a",
    "alarm": "#ff8a80",
}
# JupyterLab and VS Code say on the body which of the two they show.
_DARK_NOTEBOOKS = '[data-jp-theme-light="false"] .segstore,.vscode-dark .segstore'
_LIGHT_NOTEBOOKS = '[data-jp-theme-light="true"] .segstore,.vscode-light .segstore'


def _variables(colours: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())


COLOURS = (
    f".segstore{{{_variables(LIGHT)}}}"
    f"@media (prefers-color-scheme:dark){{.segstore{{{_variables(DARK)}}}}}"
    f"{_DARK_NOTEBOOKS}{{{_variables(DARK)}}}{_LIGHT_NOTEBOOKS}{{{_variables(LIGHT)}}}"
)
DRAWING = (
    "svg.segstore{display:block;width:100%;height:auto;"
    "font:12px system-ui,-apple-system,'Segoe UI','Open Sans',sans-serif}"
    ".segstore text{fill:var(--ink);font-variant-numeric:tabular-nums}"
    ".segstore .muted{fill:var(--muted)}.segstore .alarm{fill:var(--alarm)}"
    ".segstore .strong{font-weight:600}"
    ".segstore .grid{stroke:var(--line);stroke-width:1}"
    ".segstore .edge{stroke:var(--ink);stroke-width:1.5}"
    ".segstore .flag{stroke:var(--muted);stroke-width:1;stroke-dasharray:2 2}"
    ".segstore .arrow{fill:var(--arrow)}.segstore .parquet{fill:var(--parquet)}"
    ".segstore .both{fill:var(--both)}.segstore .hidden{fill:var(--hidden);opacity:.45}"
    ".segstore .track{fill:var(--line)}.segstore .reader{fill:var(--reader)}"
    ".segstore .lapsed{fill:var(--hidden)}"
    ".segstore .held{fill:var(--parquet);opacity:.22}"
    ".segstore .grown{fill:none;stroke:var(--parquet);stroke-width:1.5}"
    ".segstore .rewrites{fill:var(--both)}.segstore .appends{fill:var(--arrow)}"
    ".segstore .others{fill:var(--hidden)}"
)
