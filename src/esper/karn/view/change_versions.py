"""Change tracking for the entries of a section, so that a patch contains only changes."""

from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["ChangeVersions"]


@dataclass(eq=False, slots=True)
class ChangeVersions:
    """The version at which each entry of one section last changed, by key."""

    versions: dict[int, int] = field(default_factory=dict)
    replaced_at: int = -1
    """Version at which entries were last removed; older clients need the whole section."""

    def touch(self, key: int, version: int) -> None:
        """Record that an entry was added or changed."""
        self.versions[key] = version

    def drop(self, keys: Iterable[int], version: int) -> None:
        """Record that entries were removed."""
        for key in keys:
            del self.versions[key]
        self.replaced_at = version

    def since(self, version: int) -> list[int] | None:
        """Return the keys changed since a version; None if the client needs the whole section."""
        if version < self.replaced_at or version < 0:
            return None
        return [key for key, changed in self.versions.items() if changed > version]
