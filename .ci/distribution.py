"""The distributions of this source: `segstore-ds`, the whole, and `segstore-core` without Spark.

The core is for environments that bring a Spark of their own, and for Python alone: the same files
under another name, without pyspark among the requirements. Build it with SEGSTORE_DISTRIBUTION=core
in the environment. The core is released as a wheel alone: hatchling runs no hook for a source
distribution, so that would build the whole. All metadata stays in pyproject.toml.
"""

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

WHOLE, CORE = "segstore-ds", "segstore-core"
# Of the core, only users need extras.
EXTRAS_OF_THE_WHOLE = frozenset({"test", "bench", "rivals"})


class DistributionHook(MetadataHookInterface):
    """Changes the metadata if the core is built."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Rename the project, and take out what needs Spark."""
        asked = os.environ.get("SEGSTORE_DISTRIBUTION", "")
        if asked not in ("", "core"):
            raise ValueError(f"SEGSTORE_DISTRIBUTION is {asked!r}: give 'core', or nothing")
        if not asked:
            return
        metadata["name"] = CORE
        metadata["dependencies"] = [
            text for text in metadata["dependencies"] if not text.startswith("pyspark")
        ]
        metadata["optional-dependencies"] = {
            extra: [text.replace(f"{WHOLE}[", f"{CORE}[") for text in texts]
            for extra, texts in metadata["optional-dependencies"].items()
            if extra not in EXTRAS_OF_THE_WHOLE
        }
