"""The console script `segstore`."""

import io
import sys
from collections.abc import Sequence

from segstore_ds.cli import FAILED
from segstore_ds.version import requirement

_MISSING = """\
segstore: the command line needs typer and rich: pip install '{}'
In Python nothing else is needed: import segstore_ds as segstore"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    for out in (sys.stdout, sys.stderr):
        if isinstance(out, io.TextIOWrapper):
            out.reconfigure(errors="backslashreplace")  # names may hold unprintable characters
    try:
        import rich  # noqa: F401 - commands import it when they print
        import typer  # noqa: F401 - see above
    except ImportError:
        print(_MISSING.format(requirement("cli")), file=sys.stderr)
        return FAILED
    from segstore_ds.cli.app import build_app
    from segstore_ds.cli.arguments import spell_calls
    from segstore_ds.cli.show import log_to_terminal

    log_to_terminal(lambda text: spell_calls(text, lambda _: ()))
    try:
        build_app()(args=arguments, prog_name="segstore")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
