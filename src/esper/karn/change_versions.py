"""Which entry of a section changed when, so that a patch carries only what is new."""

from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["ChangeVersions"]


@dataclass(eq=False, slots=True)
class ChangeVersions:
    """Versions of the entries of one section, by key."""

    versions: dict[int, int] = field(default_factory=dict)
    replaced_at: int = -1
    """Version at which entries were last taken away: older clients start over."""

    def touch(self, key: int, version: int) -> None:
        """Note that an entry is new or has changed."""
        self.versions[key] = version

    def drop(self, keys: Iterable[int], version: int) -> None:
        """Note that entries are gone."""
        for key in keys:
            del self.versions[key]
        self.replaced_at = version

    def since(self, version: int) -> list[int] | None:
        """Return the keys a client at this version lacks; None when it has to start over."""
        if version < self.replaced_at or version < 0:
            return None
        return [key for key, changed in self.versions.items() if changed > version]
